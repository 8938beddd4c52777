"""The process of a job: a command of metagrove that ends when the process that started it dies.

`python -m metagrove.workers.child train toy-5shot ...`; standard input is an empty pipe.
"""

import os
import runpy
import threading


def end_with_parent() -> None:
    """End this process when standard input is closed; its last checkpoint remains, and its locks are released."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    runpy.run_module("metagrove", run_name="__main__", alter_sys=True)
