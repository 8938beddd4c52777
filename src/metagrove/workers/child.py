"""The process of a job: a command of metagrove that ends when the process that started it dies.

`python -m metagrove.workers.child train toy-5shot ...`; standard input is a pipe that nothing is written to.
"""

import os
import runpy
import threading


def end_with_parent() -> None:
    """End this process at once when standard input is closed; its last checkpoint stays, and its locks are lifted."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    runpy.run_module("metagrove", run_name="__main__", alter_sys=True)
