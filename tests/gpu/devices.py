"""Engines on a GPU, by a backend that is a module. Run by scripts/gpu.sh.

    devices.py TARGET DRAFT          FOREDRAFT_MODULE: the module; GGML_VK_VISIBLE_DEVICES: the device

Prints `ok NAME` for each test, and on the way what the device is and how fast it was: only to show that it computed.
"""
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

TARGET, DRAFT = sys.argv[1:3]
MODULE = os.environ["FOREDRAFT_MODULE"]
STORY = {"prompt": "Once upon a time", "n_predict": 24, "temperature": 0}
ALL = {"n_gpu_layers": 99}


class Lines(logging.Handler):
    """Collects llama.cpp's log lines about the layers."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def take(self, part):
        found, self.lines = [line for line in self.lines if part in line], []
        return found


def gpus(status):
    return [device for device in status["devices"] if device["type"] in ("gpu", "igpu")]


def check_devices(foredraft, lines):
    with foredraft.Engine(TARGET, **ALL) as engine:
        status = engine.status()
        found = gpus(status)
        assert found and status["warnings"] == [], (status["devices"], status["warnings"])
        assert all(device["memory_total"] > 0 and device["name"] and device["description"] for device in found), found
        print("devices:", ", ".join(f"{device['name']}: {device['description']}" for device in found))
        offloaded = lines.take("offloaded")
        assert offloaded and " 0/" not in offloaded[0], offloaded
        began = time.monotonic()
        answer = engine.complete(**STORY)
        print(f"{STORY['n_predict'] / (time.monotonic() - began):.0f} tokens/s; {offloaded[0].strip()}")
        assert answer.text


def check_no_layers(foredraft, lines):
    with foredraft.Engine(TARGET, n_gpu_layers=0) as engine:
        offloaded = lines.take("offloaded")
        assert all(" 0/" in line for line in offloaded), offloaded
        assert engine.status()["warnings"] == []
        assert engine.complete(**STORY).text


def check_speculation(foredraft, lines):
    """Target and draft on either. A difference is allowed, and is no silent one: `compare` reports it."""
    for name, more in {
        # Where there are several devices, the draft is on the first one: lavapipe ends a program of llama.cpp alone, too, that has layers of two
        # models on each of two devices.
        "both on the device": ALL | {"devices_draft": gpus_of(foredraft), "n_gpu_layers_draft": 99},
        "draft on the CPU": ALL | {"devices_draft": "none"},
        "target on the CPU": {"devices": "none", "devices_draft": gpus_of(foredraft), "n_gpu_layers_draft": 99},
    }.items():
        lines.take("")
        with foredraft.Engine(TARGET, model_draft=DRAFT, **more) as engine:
            n_offloaded = len([line for line in lines.take("offloaded") if " 0/" not in line])
            assert n_offloaded == (2 if name.startswith("both") else 1), (name, n_offloaded)
            n_accepted = n_different = 0
            for prompt in ("Once upon a time", "The dog and the cat"):
                for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 3}):
                    request = {"prompt": prompt, "n_predict": 24, "speculative": {"type": "draft", "n_max": 6, "adaptive": False, "compare": True}, **sampling}
                    report = engine.complete(**request)["speculative"]
                    assert "first_difference" in report, report
                    n_different += report["first_difference"] is not None
                    n_accepted += report["n_accepted"]
            assert n_accepted > 0, report
            print(f"{name}: {n_accepted} drafted tokens accepted, {n_different} of 4 completions differ from plain ones")


def gpus_of(foredraft):
    with foredraft.Engine(TARGET) as engine:
        return [gpus(engine.status())[0]["name"]]


def check_cancel(foredraft, lines):
    with foredraft.Engine(TARGET, n_ctx=2048, **ALL) as engine:
        stream = engine.stream(prompt="Once upon a time", n_predict=1500, ignore_eos=True)
        for n, _ in enumerate(stream):
            if n == 5:
                stream.close()
                break
        began = time.monotonic()
        assert engine.complete(**STORY).text, "the slot is free again"
        assert time.monotonic() - began < 60


def check_memory(foredraft, lines):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    # On lavapipe the device's memory is the process's. The allocator's share varies by some ten MB.
    loaded, unloaded = [], []
    for _ in range(8):
        with foredraft.Engine(TARGET, n_ctx=16384, warmup=False, **ALL) as engine:
            engine.complete(prompt="Once", n_predict=2, temperature=0)
            loaded.append(resident())
        unloaded.append(resident())
    print("resident MB while loaded and after each unload:", " ".join(f"{a / 1e6:.0f}/{b / 1e6:.0f}" for a, b in zip(loaded, unloaded)))
    context = loaded[-1] - unloaded[-1]
    assert context > 0 and unloaded[-1] - unloaded[2] < 2 * context, (context, unloaded)


def check_missing_device(foredraft, lines):
    for more in ({"devices": ["Vulkan7"]}, {"devices_draft": ["Vulkan7"], "model_draft": DRAFT}):
        try:
            foredraft.Engine(TARGET, **more)
        except foredraft.InvalidRequestError as error:
            assert "there is no device \"Vulkan7\"" in str(error), error
        else:
            raise AssertionError("a device that is missing is an error")


def used(status, part, on_gpu=True):
    """Sums of what a model has on GPUs, or on the CPU."""
    found = [device[part] for device in status["devices"] if (device["type"] != "cpu") == on_gpu and device[part]]
    return {key: sum(on[key] for on in found) for key in ("n_layers", "output", "weights", "kv_cache", "compute")}


def check_what_runs_where(foredraft, lines):
    """The layers, weights and caches of both models, on the device and on the CPU."""
    with foredraft.Engine(TARGET, model_draft=DRAFT, n_gpu_layers=0, devices_draft="none") as engine:
        status = engine.status()
        on_cpu = {part: used(status, part, on_gpu=False) for part in ("target", "draft")}
        assert used(status, "target")["n_layers"] == 0 and used(status, "target")["weights"] == 0, status["devices"]
        assert used(status, "draft")["compute"] == 0, status["devices"]
    for layers in (1, 3, 99):
        with foredraft.Engine(TARGET, model_draft=DRAFT, n_gpu_layers=layers, devices_draft=gpus_of(foredraft), n_gpu_layers_draft=99) as engine:
            status = engine.status()
        gpu, cpu, whole = used(status, "target"), used(status, "target", on_gpu=False), on_cpu["target"]
        assert gpu["n_layers"] + gpu["output"] == min(layers, whole["n_layers"] + 1), status["devices"]
        assert gpu["n_layers"] + cpu["n_layers"] == whole["n_layers"]
        # A layer's cache lies where the layer is.
        assert gpu["kv_cache"] * whole["n_layers"] == whole["kv_cache"] * gpu["n_layers"], (gpu, whole)
        assert gpu["kv_cache"] + cpu["kv_cache"] == whole["kv_cache"]
        assert gpu["weights"] > 0 and gpu["compute"] > 0 and gpu["weights"] + cpu["weights"] >= whole["weights"]
        assert used(status, "draft")["n_layers"] == on_cpu["draft"]["n_layers"]
        print(f"n_gpu_layers {layers}: target on the device {gpu}, on the CPU {cpu}")


def write_adapter(path, rank):
    """A LoRA adapter of zeros on the attention outputs of all layers of TARGET; returns the bytes of its tensors."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, 2 * 6, 4)
    for key, value in (("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")):
        head += text(key) + struct.pack("<I", 8) + text(value)
    head += text("adapter.lora.alpha") + struct.pack("<If", 6, 1)
    size = 0
    for layer in range(6):
        for part, shape in (("lora_a", (256, rank)), ("lora_b", (rank, 256))):
            head += text(f"blk.{layer}.attn_output.weight.{part}") + struct.pack("<IQQIQ", 2, *shape, 0, size)
            size += 4 * 256 * rank
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(-(-len(head) // 32) * 32 + size)
    return size


def check_fit(foredraft, lines):
    """`fit` takes what fits into the device's memory less a margin, which makes the device as small as is needed here."""
    def devices():
        with foredraft.Engine(TARGET, vocab_only=True) as engine:
            return gpus(engine.status())

    n = len(devices())
    with foredraft.Engine(TARGET, warmup=False) as engine:
        weights = used(engine.status(), "target")["weights"]

    def load(mb, shared=False, uncounted=0, **more):
        free = min(device["memory_free"] for device in devices())
        with foredraft.Engine(TARGET, warmup=False, fit=True, fit_margin_mb=max((free >> 20) - mb, 0), **more) as engine:
            status = engine.status()
            gpu, chosen = used(status, "target"), status["fit"]
            assert gpu["n_layers"] + gpu["output"] == chosen["n_gpu_layers"], status
            assert engine.complete(prompt="Once", n_predict=4, temperature=0).text
            for device in gpus(status) if chosen["fits"] else []:
                both = [device[part] for part in ("target", "draft") if device[part]]
                assert sum(on["weights"] * (not shared) + on["kv_cache"] + on["compute"] for on in both) <= (mb << 20) + uncounted, (mb, device)
        print(f"{mb} MiB on each of {n}: {chosen}")
        return chosen

    # A cache of 128 MiB in each of the layers, and 300 MiB or so for computing on each device.
    large = {"n_ctx": 131072, "cache_type_k": "f32", "cache_type_v": "f32"}
    plenty = load(1600, **large)
    assert plenty["fits"] and not plenty["reduced"] and plenty["n_ctx"] == 131072, plenty
    fewer = load(500, **large)
    assert fewer["fits"] and fewer["reduced"] and 0 < fewer["n_gpu_layers"] < plenty["n_gpu_layers"] and fewer["n_ctx"] == 131072, fewer
    shorter = load(500, fit_ctx=1024, **large)
    assert shorter["fits"] and shorter["n_gpu_layers"] == plenty["n_gpu_layers"] and 1024 < shorter["n_ctx"] < 131072, shorter
    nothing = load(0, model_draft=DRAFT, n_ctx=512)
    device = nothing.pop("devices")[0]
    assert device["needed"] > device["limit"] == 0 and device["asked"] > device["needed"], device
    assert nothing == {"n_cpu_moe": 0, "n_gpu_layers": 0, "n_gpu_layers_draft": 0, "n_ctx": 512, "reduced": True, "fits": False}, nothing
    # On one device. (With layers on two of them, computing would take much of so little memory on each.)
    first = {"devices": gpus_of(foredraft)}
    # The weights that another engine has already are not counted again.
    assert load(10, n_ctx=512, **first)["n_gpu_layers"] < plenty["n_gpu_layers"]
    with foredraft.Engine(TARGET, warmup=False, **first):
        assert load(10, shared=True, n_ctx=512, **first)["n_gpu_layers"] == plenty["n_gpu_layers"]
    # An adapter lies where the layers are. Its tensors are larger than the model. Its results of a batch of 512 tokens are not counted.
    rank = 2048
    with tempfile.TemporaryDirectory() as folder:
        size = write_adapter(f"{folder}/adapter.gguf", rank)
        with_adapter = load(weights + size // 2 >> 20, uncounted=2 * 512 * rank * 4, n_ctx=512, **first, lora=[f"{folder}/adapter.gguf"])
    assert with_adapter["fits"] and 0 < with_adapter["n_gpu_layers"] < plenty["n_gpu_layers"], with_adapter
    # `fit` offloads no more layers than were asked for.
    assert load(1600, n_gpu_layers=2, n_ctx=512)["n_gpu_layers"] == 2
    with foredraft.Engine(TARGET, n_gpu_layers=2) as engine:
        assert engine.status()["fit"] is None


def check_out_of_memory(foredraft, lines):
    """A context that no device has memory for is an error that says so, and the next load works."""
    try:
        foredraft.Engine(TARGET, n_ctx=1 << 25, **ALL)
    except foredraft.ModelError as error:
        text = str(error)
        assert "Vulkan0 has not enough memory (" in text and "fit" in text and "n_gpu_layers" in text, text
        print(text)
    else:
        raise AssertionError("there is memory for everything")
    with foredraft.Engine(TARGET, **ALL) as engine:
        assert engine.complete(**STORY).text


def check_split(foredraft, lines):
    """Splits layers between the device and the CPU, and between two devices, if there are two."""
    with foredraft.Engine(TARGET, n_gpu_layers=2) as engine:
        offloaded = lines.take("offloaded")
        assert offloaded and " 2/" in offloaded[0], offloaded
        assert engine.complete(**STORY).text
        n = len(gpus(engine.status()))
    if n > 1:
        with foredraft.Engine(TARGET, tensor_split=[1, 1], **ALL) as engine:
            assert engine.complete(**STORY).text
            placed = {line.split("model buffer size")[0].split()[-1] for line in lines.take("model buffer size") if "Vulkan" in line}
            assert len(placed) == 2, placed
    print(f"{n} devices")


#: Programs of their own, because a process chooses its modules once: the environment's changes, the configuration, what the warnings must have.
NOT_SILENT = {
    "no module": ({"FOREDRAFT_BACKENDS": ""}, ALL, ["n_gpu_layers: not used"]),
    "a missing module": ({"FOREDRAFT_BACKENDS": "/missing/libforedraft-vulkan.so"}, ALL, ["/missing/libforedraft-vulkan.so", "n_gpu_layers: not used"]),
    "a missing module, no layers": ({"FOREDRAFT_BACKENDS": "/missing/libforedraft-vulkan.so"}, {}, ["/missing/libforedraft-vulkan.so"]),
    "another library": ({"FOREDRAFT_BACKENDS": "libc.so.6"}, {}, ["it has no foredraft_backend_version"]),
    "all is well": ({"FOREDRAFT_BACKENDS": MODULE}, ALL, []),
}


def check_not_silent(foredraft, lines):
    cases = dict(NOT_SILENT)
    if "llvmpipe" in json.dumps(lines.devices):
        cases["a device that ggml passes over"] = ({"FOREDRAFT_BACKENDS": MODULE, "GGML_VK_VISIBLE_DEVICES": None}, ALL, ["n_gpu_layers: not used"])
    program = "import foredraft, json, sys\nwith foredraft.Engine(sys.argv[1], **json.loads(sys.argv[2])) as engine: print(json.dumps(engine.status()['warnings']))"
    for name, (changes, config, expected) in cases.items():
        environment = {key: value for key, value in (os.environ | changes).items() if value is not None}
        ran = subprocess.run([sys.executable, "-c", program, TARGET, json.dumps(config)], env=environment, stdout=subprocess.PIPE, check=True)
        warnings = json.loads(ran.stdout)
        assert len(warnings) == len(expected) and all(part in warning for part, warning in zip(expected, warnings)), (name, warnings)
        print(f"{name}: {warnings}")


def check_isolated(foredraft, lines):
    with foredraft.Engine(TARGET, isolate=True, **ALL) as engine:
        assert gpus(engine.status()) and engine.status()["warnings"] == []
        assert engine.complete(**STORY).text
    # With `fallback`, a process that died for lack of memory comes back with half of the layers that `fit` had chosen.
    with foredraft.Engine(TARGET, isolate=True, fallback=True, fit=True, fit_margin_mb=0) as engine:
        assert engine.status()["fit"]["n_gpu_layers"] == 7
        os.kill(engine.status()["isolation"]["pid"], signal.SIGKILL)
        assert engine.complete(**STORY).text
        deaths = engine.status()["isolation"]["deaths"]
        assert deaths and deaths[-1]["change"] == "n_gpu_layers is 3 now", deaths
        assert engine.status()["fit"]["n_gpu_layers"] == 3


def main():
    os.environ["FOREDRAFT_BACKENDS"] = MODULE
    import foredraft

    lines = Lines()
    logger = logging.getLogger("foredraft")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    with foredraft.Engine(TARGET, log_level="info") as engine:
        lines.devices = engine.status()["devices"]
    checks = [check for name, check in globals().items() if name.startswith("check_")]
    for check in checks:
        lines.take("")
        check(foredraft, lines)
        print(f"ok {check.__name__.removeprefix('check_')}", flush=True)
    print(f"passed: {len(checks)} tests on {gpus({'devices': lines.devices})[0]['description']}")


main()
