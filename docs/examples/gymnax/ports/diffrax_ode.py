import diffrax
import jax
import jax.numpy as jnp


def field(t, y, stiffness):
    """The oscillator of Van der Pol."""
    position, speed = y
    return jnp.stack([speed, stiffness * (1 - position**2) * speed - position])


def solve(stiffness):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=20.0,
        dt0=0.1,
        y0=jnp.array([2.0, 0.0]),
        args=stiffness,
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        max_steps=2000,
    )


if __name__ == "__main__":
    solution = jax.jit(solve)(20.0)
    print(f"position {solution.ys[0, 0]:.2f} after {solution.stats['num_steps']} steps")
