"""Two parts of a core, each with a program that always computes; prints what they got, as JSON."""

import json
import subprocess
import sys
import time
from pathlib import Path

from farside.agent.serving.partition.cpu import CpuDriver
from farside.agent.serving.partition.policy import Device, Place

PARTS = (30, 70)
MEASURE_S = 10.0
# Joins as an executor does, then computes.
BURN = "import sys; [open(name, 'w').write('0') for name in sys.argv[1:]]; print('in', flush=True)\nwhile True: pass"


def main() -> None:
    driver = CpuDriver()
    found = driver.capabilities()
    if found.problem:
        print(json.dumps({"problem": found.problem}))
        return
    places = [driver.open(Device(cores=(0,)), part) for part in PARTS]
    burners = []
    for place in places:
        burner = subprocess.Popen([sys.executable, "-c", BURN, *place.entry.files], stdout=subprocess.PIPE, text=True)
        assert burner.stdout is not None
        burner.stdout.readline()
        burners.append(burner)
    before = [used_s(place) for place in places]
    began_s = time.monotonic()
    time.sleep(MEASURE_S)
    took_s = time.monotonic() - began_s
    got = [(used_s(place) - start_s) / took_s for place, start_s in zip(places, before, strict=True)]
    folders = [Path(place.entry.files[0]).parent for place in places]
    limits = [(folder / "cpu.max").read_text().strip() for folder in folders]
    bursts = [(folder / "cpu.max.burst").read_text().strip() for folder in folders]
    cores = (folders[0] / "cpuset.cpus.effective").read_text().strip()
    resized = places[0].resize(50)
    for burner, place in zip(burners, places, strict=True):
        burner.kill()
        burner.wait()
        place.close()
    left = [str(folder) for folder in {folders[0].parent, *folders} if folder.exists()]
    print(json.dumps({"isolation": found.isolation, "got": got, "limits": limits, "bursts": bursts, "cores": cores,
                      "left": left, "resized": resized}))  # fmt: skip


def used_s(place: Place) -> float:
    measured = place.measured()
    assert measured is not None
    return measured.device_s


if __name__ == "__main__":
    main()
