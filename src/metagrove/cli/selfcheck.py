"""metagrove selfcheck."""

import dataclasses
import json
import sys

import tyro

from metagrove.errors import InputError

Positional = tyro.conf.Positional


@dataclasses.dataclass(frozen=True)
class Selfcheck:
    """Show the devices, train every learner for a few meta-steps on them, and compare with values stored on a CPU."""

    learners: Positional[tuple[str, ...]] = ()
    """Names of learners; by default all."""
    json: bool = False
    """Print one JSON object instead of lines."""

    def __call__(self) -> int:
        import jax

        from metagrove.config.registry import unknown_name
        from metagrove.training import selfcheck

        chosen = self.learners or selfcheck.names()
        for name in chosen:
            if name not in selfcheck.names():
                raise InputError(unknown_name(name, selfcheck.names(), "learner"))
        devices = [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
        if not self.json:
            print("\n".join(["devices", *(f"  {device}" for device in devices), "learners"]))
        found = selfcheck.check_learners(chosen, (lambda _: None) if self.json else tell)
        differing = [one.learner for one in found if not one.agrees]
        if self.json:
            print(
                json.dumps(
                    {"devices": devices, "learners": [dataclasses.asdict(one) for one in found], "differ": differing}
                )
            )
        elif differing:
            print(
                f"{', '.join(differing)}: differs by more than {selfcheck.TOLERANCE:g} from the stored values",
                file=sys.stderr,
            )
        else:
            print(f"all {len(found)} agree with the stored CPU values within {selfcheck.TOLERANCE:g}")
        return 1 if differing else 0


def tell(one) -> None:
    """Print a line about a learner."""
    state = "ok" if one.agrees else "DIFFERS"
    print(f"  {one.learner:<18} {state:<8} relative difference {one.difference:.1e}, {one.seconds:.1f} s", flush=True)
