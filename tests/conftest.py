"""Every test runs with shape annotations checked (see pyproject), warnings as errors and rank promotion forbidden."""

import contextlib
import ctypes
import gc
import os
from pathlib import Path

# Compiling is most of the time. It is done lightly, here and in the commands that tests start, and what was compiled
# serves every file, command and later run.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"]
)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# The threads of scikit-learn's trees take the time of a core that is busy while they wait for it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import pytest

from metagrove import (
    ARML,
    BMAML,
    HSML,
    LLAMA,
    MAML,
    MUMOMAML,
    PLATIPUS,
    SNAIL,
    EvidenceClusters,
    Functions,
    Grove,
    MetaLSTM,
    MetaSGD,
    MLPNet,
    MTNet,
    NeuralProcess,
    Reptile,
    Scratch,
)
from metagrove.config.config import Config, Training
from metagrove.config.settings import replace_settings
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.embed import NoEmbedding, RecurrentEmbedding
from metagrove.hsml.gate import NodeGate

jax.config.update("jax_numpy_rank_promotion", "raise")
# jax may have been imported before the environment was set
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

gc.set_threshold(100_000, 50, 100)  # tracing allocates much that lives on, and collections search it

TINY_NET = MLPNet(hidden=(8,), init_sd=0.3)
TINY_HSML = HSML(
    net=TINY_NET,
    embed=RecurrentEmbedding(task_dim=6, example_dim=5, test_permutations=2),
    cluster=DistanceClusters(clusters=(3, 2, 1)),
    inner_steps=2,
)
TINY_EVIDENCE = EvidenceClusters(
    clusters=(3, 2, 1), degree=4, rank=3, fit_steps=30, fit_batch=4, judging_tasks=20, assumed_noise=0.1
)


def hsml(**settings) -> HSML:
    """The tiny HSML with some settings changed, by their own names."""
    return replace_settings(TINY_HSML, settings)


LEARNERS = {
    "maml": MAML(net=TINY_NET, inner_steps=2),
    "maml-first-order": MAML(net=TINY_NET, inner_steps=2, first_order=True),
    "hsml-gru": TINY_HSML,
    "hsml-lstm": hsml(embed="lstm", row_order="sorted", summary="last"),
    "hsml-mean": hsml(embed="mean"),
    "hsml-max": hsml(embed="max", clusters=(2, 1), gate="film"),
    "hsml-attention": hsml(embed="attention", attention_layers=1, attention_heads=2, gate="affine"),
    "hsml-evidence": HSML(
        net=TINY_NET,
        embed=NoEmbedding(),
        cluster=TINY_EVIDENCE,
        gate=NodeGate(gate_nodes="all"),
        inner_steps=2,
        inner_clip=10.0,
    ),
    "grove": Grove(cluster=TINY_EVIDENCE),
    "anil": MAML(net=TINY_NET, inner_steps=2, adapts="head"),
    "meta-sgd": MetaSGD(net=TINY_NET, inner_steps=2, inner_clip=1.0),
    "mt-net": MTNet(net=TINY_NET, inner_steps=2, inner_clip=10.0),
    "mumomaml": MUMOMAML(net=TINY_NET, inner_steps=2, hidden_dim=5, encoder_layers=2, test_permutations=2),
    "arml": ARML(net=TINY_NET, inner_steps=2, prototypes=2, vertices=3, example_dim=5, task_dim=6),
    "bmaml": BMAML(net=TINY_NET, particles=3, inner_lr=0.1),
    "reptile": Reptile(net=TINY_NET, inner_steps=2, inner_lr=0.01),
    "reptile-adam": Reptile(
        net=TINY_NET, inner_steps=2, inner_lr=0.01, inner_rule="adam", minibatch=4, test_minibatch=2
    ),
    "meta-lstm": MetaLSTM(net=TINY_NET, inner_steps=2, hidden_dim=3),
    "platipus": PLATIPUS(net=TINY_NET, inner_steps=2, samples=3),
    "llama": LLAMA(net=TINY_NET, inner_steps=2),
    "snail": SNAIL(key_dims=(4, 3), value_dims=(3, 2), filters_per_block=3, dilations=(1, 2), test_permutations=2),
    "neural-process": NeuralProcess(width=8, attention_layers=1, attention_heads=2),
    "neural-process-mean": NeuralProcess(encoder="mean", width=8),
    "scratch": Scratch(net=TINY_NET, inner_steps=2, updates_per_step=3),
}
ALIKE = ("maml-first-order", "anil", "hsml-lstm", "hsml-max", "neural-process-mean")
"""Train as others of the table do."""
TINY_TRAINING = Training(
    steps=40,
    meta_batch=4,
    schedule="cosine",
    warmup_steps=5,
    clip_norm=1.0,
    log_every=10,
    validate_every=20,
    validation_tasks=20,
    max_eval_inner_steps=3,
)
TINY = Config(Functions(), LEARNERS["hsml-gru"], TINY_TRAINING)


LONG = ("test_pool", "test_processes", "test_faults", "test_bulk", "test_devices", "test_wheel", "test_examples")
"""Files of a few long tests: begun first, so that no worker waits for another at the end."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_functions():
    """After a file, if they have become many: out of memory mappings, the compiler crashes."""
    yield
    if many_mappings():
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # of glibc: what is free goes back to the system
            ctypes.CDLL(None).malloc_trim(0)


def many_mappings():
    """A third of what Linux allows a process by default, or more than 2.5 GB in memory."""
    try:
        mappings = Path("/proc/self/maps").read_bytes().count(b"\n")
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return True
    return mappings > 20_000 or pages * os.sysconf("SC_PAGE_SIZE") > 2.5e9


@pytest.fixture(params=LEARNERS)
def learner(request):
    return LEARNERS[request.param]


@pytest.fixture(params=[name for name in LEARNERS if name not in ALIKE])
def distinct_learner(request):
    """For tests that take long."""
    return LEARNERS[request.param]
