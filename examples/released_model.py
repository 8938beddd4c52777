"""Adapt a released model to five points of a function that it has never seen.

python examples/released_model.py
"""

import numpy as np

import metagrove as mg

run = mg.load("toy-5shot-best")
x = np.array([-3.0, -1.0, 0.5, 2.0, 4.0])
y = 2 * x + 1

adapted = run.adapt(x, y)
for at, value in zip([0.0, 1.0, 3.0], adapted.predict([0.0, 1.0, 3.0]).ravel(), strict=True):
    print(f"f({at:.0f}) = {value:.2f}, truth {2 * at + 1:.2f}")
shares = ", ".join(f"{share:.0%}" for share in adapted.assignments[0].ravel())
print(f"its assignment to the four clusters of the first level: {shares}")
