# SPDX-License-Identifier: Apache-2.0
"""The table that ``descriptor.tile("suggested")`` looks into: ``nvmath_device.tune`` for usual products of a device.

All candidates of all products are compiled first, as many at a time as there are cores; then each product is timed and
its line written at once, so that a run that is killed leaves what it has. Lines for products that this run does not
reach stay as they are in the file.

    python benchmarks/tune_table.py --table nvmath_device/tuned_h200.json --trials trials.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nvmath_device as nd
from nvmath_device import tuned_results
from nvmath_device.lto.codegen import worker_count
from nvmath_device.targets import compute_capability
from nvmath_device.tile_candidates import candidates
from nvmath_device.tuning_builds import build_all, code_of

ALONG_K, ROWS = ("row_major", "col_major", "row_major"), ("row_major",) * 3
SIZES = (8192, 4096, 1024)
PRODUCTS = {
    "fp16": (("float16", "float16", "float32"), ALONG_K),
    "bf16": (("bfloat16", "bfloat16", "float32"), ALONG_K),
    "tf32": (("tfloat32", "tfloat32", "float32"), ALONG_K),
    "fp8-fp32": (("float8_e4m3fn", "float8_e4m3fn", "float32"), ALONG_K),
    "fp32": (("float32",) * 3, ROWS),
    "fp64": (("float64",) * 3, ROWS),
}
KEY = ("precision", "arrangement", "alignment", "size", "sm")


def product(name: str, size: int) -> nd.GemmDescriptor:
    precision, arrangement = PRODUCTS[name]
    return nd.GemmDescriptor(size=(size,) * 3, precision=precision, arrangement=arrangement, alignment=nd.MAX_ALIGNMENT)


def compile_everything(products: list[nd.GemmDescriptor], sm: nd.ComputeCapability, *, until: float) -> None:
    """Every candidate once, though sizes share them; what they become is in the code store afterwards."""
    jobs = {}
    for descriptor in products:
        for choice in candidates(descriptor, sm):
            jobs.setdefault((descriptor.precision, descriptor.arrangement, code_of(choice)), (descriptor, choice))
    print(f"compiling {len(jobs)} kernels", flush=True)
    started = time.monotonic()
    with ThreadPoolExecutor(worker_count(len(jobs))) as executor:
        done = executor.map(lambda job: build_all(job[0], [job[1]], sm, deadline=until), jobs.values())
        for place, (build, (descriptor, choice)) in enumerate(zip(done, jobs.values(), strict=True), 1):
            (made,) = build.values()
            what = made.outcome or f"{made.registers} registers, {made.path}"
            print(
                f"{place:3} {time.monotonic() - started:5.0f} s  {descriptor.precision.a} {choice}: {what}", flush=True
            )


def line_of(tuned: nd.Tuned) -> dict[str, Any]:
    descriptor = tuned.descriptor
    major, minor = tuned.device["compute_capability"]
    return {
        "precision": [str(t) for t in descriptor.precision],
        "arrangement": list(descriptor.arrangement),
        "alignment": list(descriptor.alignment or ()),
        "size": list(descriptor.size),
        "sm": 10 * major + minor,
        **tuned_results.choice_words(tuned.best),
        "milliseconds": round(tuned.milliseconds, 5),
    }


def write(path: Path, content: Any, members: str) -> None:
    """JSON with one line a member, written aside and moved into place."""
    listed = ",\n".join(f"  {json.dumps(member)}" for member in content.pop(members))
    head = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in content.items())
    aside = path.with_name(f"{path.name}.part")
    aside.write_text(f'{{\n{head} "{members}": [\n{listed}\n ]\n}}\n', encoding="utf-8")
    os.replace(aside, path)


def add_line(path: Path, tuned: nd.Tuned) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tiles": []}
    new = line_of(tuned)
    places = {json.dumps([line[name] for name in KEY]): line for line in content["tiles"]}
    places[json.dumps([new[name] for name in KEY])] = new
    write(path, {"device": tuned.device["name"], "tiles": list(places.values())}, "tiles")


def add_trials(path: Path, tuned: nd.Tuned) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"products": []}
    content["products"].append({"product": line_of(tuned), **tuned.as_dict()})
    write(path, content, "products")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True, help="the table, whose lines are replaced")
    parser.add_argument("--trials", type=Path, help="a file for all that was tried, to which products are added")
    parser.add_argument("--products", nargs="+", choices=PRODUCTS, default=list(PRODUCTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--limit-s", type=float, default=540.0, help="seconds, after which nothing new begins")
    options = parser.parse_args()
    started = time.monotonic()
    sm = compute_capability(tuple(tuned_results.current_device_words()["compute_capability"]))
    wanted = [product(name, size) for size in options.sizes for name in options.products]
    compile_everything(wanted, sm, until=started + 0.6 * options.limit_s)
    failed = 0
    for descriptor in wanted:
        left = options.limit_s - (time.monotonic() - started)
        if left <= 0:
            print(f"no time for {descriptor.precision} {tuple(descriptor.size)}", flush=True)
            failed += 1
            continue
        try:
            tuned = nd.tune(descriptor, limit_s=left, again=True)
        except nd.errors.UnsupportedError as error:
            print(error, flush=True)
            failed += 1
            continue
        print(f"{time.monotonic() - started:.0f} s  {tuned}", flush=True)
        add_line(options.table, tuned)
        if options.trials:
            add_trials(options.trials, tuned)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
