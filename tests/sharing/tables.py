"""A small folder of tables, written as the shared ones are."""

from pathlib import Path

MODELS = "id,model,slo_ms,mem_mb,input\n0,small,20,100,1x28x28\n1,large,120,1500,3x224x224\n"
CONSTANTS = "l2_util_m1,l2_util_m2,dram_util_m1,dram_util_m2,constant\n0.1,0.7,0.3,0.1,0.9\n"
OVERHEAD = "input,batch,concat_ms\n3x224x224,1,0.2\n3x224x224,2,0.5\n3x224x224,4,1.0\n"
PARTS = (20, 40, 50, 60, 80, 100)
SINGLE_MS = {"small": 0.5, "large": 8.0}


def latencies() -> str:
    rows = [
        f"{name},{part},{batch},{ms * (1 + batch) * (0.6 + 40 / part):.4f}"
        for name, ms in SINGLE_MS.items()
        for part in PARTS
        for batch in (1, 2, 4)
    ]
    return "\n".join(["model,part_pct,batch,latency_ms", *rows]) + "\n"


def utilisation() -> str:
    rows = [f"{name},{batch},1,20,{10 * batch},{15 * batch}" for name in SINGLE_MS for batch in (1, 2, 3, 4)]
    return "\n".join(["bench,batch,avg_duration(ms),SM_util(%),l2_util(%),mem_util(%)", *rows]) + "\n"


def derived(folder: Path, **changed: str) -> Path:
    """Tables of a derived kind; ``changed``: other text by the begin of a name."""
    files = {
        "models": ("models.csv", MODELS),
        "latency": ("gpu-LATENCY-derived.csv", latencies()),
        "util": ("gpu-UTIL.CSV", utilisation()),
        "constants": ("gpu-INT_MODEL_CONSTANT.CSV", CONSTANTS),
        "overhead": ("batch-overhead.csv", OVERHEAD),
    }
    folder.mkdir(exist_ok=True)
    for key, (name, text) in files.items():
        (folder / name).write_text(changed.get(key, text))
    return folder


def measured(folder: Path) -> Path:
    """Tables of a measured kind, with co-runs of both models on each cut."""
    derived(folder)
    for name in ("gpu-LATENCY-derived.csv", "gpu-UTIL.CSV", "gpu-INT_MODEL_CONSTANT.CSV", "batch-overhead.csv"):
        (folder / name).unlink()
    (folder / "gpu-LATENCY.csv").write_text(latencies())
    rows = [
        f"{name},{batch},{part},{other},{other_batch},"
        f"{(1.1 + other_batch / 20) * SINGLE_MS[name] * (1 + batch) * (0.6 + 40 / part):.4f}"
        for name in SINGLE_MS
        for part in PARTS[:-1]
        for batch in (1, 2, 4)
        for other in SINGLE_MS
        for other_batch in (1, 2, 4)
    ]
    text = "\n".join(["model,batch,part_pct,other_model,other_batch,latency_ms", *rows]) + "\n"
    (folder / "gpu-INTERFERENCE.csv").write_text(text)
    return folder
