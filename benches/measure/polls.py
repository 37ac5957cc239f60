"""How long submits and polls of chats take at most, beside other programs that keep the processors busy.

    python3 benches/measure polls MODEL [--busy 2] [--chats 40] [--n-predict 60]

Each chat is submitted and polled without `timeout_ms` every 2 ms until it ends. A call that another program interrupts takes as long as that one
runs. So after each call a loop works for the processor time that the call took, and the times of these loops are printed as `noise`.
"""
import ctypes
import json
import multiprocessing
import time

from engines import Engine, library

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story about a fox."}]


def options(parser):
    parser.add_argument("model")
    parser.add_argument("--busy", type=int, default=2, help="busy programs")
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--n-predict", type=int, default=60)


def work():
    while True:
        pass


def line(name, seconds):
    """The distribution of times, in milliseconds."""
    of = sorted(1000 * second for second in seconds)
    median, rare = of[len(of) // 2], of[len(of) * 999 // 1000]
    return f"{name}: {len(of)} calls, median {median:.4f} ms, 99.9 % {rare:.3f} ms, most {of[-1]:.3f} ms"


def run(args):
    lib = library(args.library)
    times = {"submit": [], "poll": [], "noise": []}

    def call(engine, name, body):
        function = getattr(lib, f"foredraft_{name}")
        function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
        body = json.dumps(body).encode()
        begun, worked = time.perf_counter(), time.thread_time()
        answer = function(engine.handle, body)
        ended, worked = time.perf_counter(), time.thread_time() - worked
        until = time.thread_time() + worked
        while time.thread_time() < until:
            pass
        times["noise"].append(time.perf_counter() - ended)
        times[name].append(ended - begun)
        return engine.taken(answer)

    programs = [multiprocessing.Process(target=work, daemon=True) for _ in range(args.busy)]
    for program in programs:
        program.start()
    try:
        with Engine(lib, model=args.model, n_ctx=512) as engine:
            for _ in range(args.chats):
                request = {"messages": MESSAGES, "n_predict": args.n_predict, "ignore_eos": True}
                command = {"id": call(engine, "submit", request)["id"]}
                while not call(engine, "poll", command)["finished"]:
                    time.sleep(0.002)
    finally:
        for program in programs:
            program.kill()
    for name, seconds in times.items():
        print(line(name, seconds))
