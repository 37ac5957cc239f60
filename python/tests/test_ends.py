"""The ends of a program: Ctrl-C in every wait, exits in the middle of everything, forks."""
import signal
import subprocess
import sys

import pytest

from conftest import HANG, TARGET, Program

WAITS = {
    "complete": "engine.complete('Once', **ENDLESS)",
    "stream": "for _ in engine.stream('Once', **ENDLESS): pass",
    "async": "asyncio.run(engine.complete_async('Once', **ENDLESS))",
    "embed": "engine.complete('Once', n_predict=1); [engine.embed('Once ' * 100) for _ in iter(int, 1)]",
    "queue": "running = engine.stream('Once', **ENDLESS); engine.complete('Once', **ENDLESS)",
    "session": "running = engine.stream('Once', **ENDLESS); next(running); engine.session_save('/dev/null', id_slot=0)",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_every_wait(wait):
    program = Program(f"""
        import asyncio, threading
        from foredraft import Engine
        with Engine(TARGET, embedding=True, **CONFIG) as engine:
            try:
                # The wait has begun when the engine works.
                def tell():
                    while not any(slot["request_id"] for slot in engine.status()["slots"]): pass
                    print("waits")
                if {wait!r} == "embed":
                    print("waits")
                else:
                    threading.Thread(target=tell).start()
                {WAITS[wait]}
            except KeyboardInterrupt:
                print("interrupted")
        print(engine.closed)
    """)
    assert program.line() == "waits"
    program.signal(signal.SIGINT)
    out, _ = program.end()
    assert out.split() == ["interrupted", "True"]


def test_ctrl_c_ends_a_load():
    program = Program("""
        import signal
        from foredraft import Engine
        engine = Engine()
        status = engine.status
        def interrupted_status():
            # In the middle of the load, as far as that can be said.
            signal.raise_signal(signal.SIGINT)
            return status()
        engine.status = interrupted_status
        try:
            engine.load(TARGET, **CONFIG)
        except KeyboardInterrupt:
            print("interrupted", status()["state"])
        engine.status = status
        engine.load(TARGET, **CONFIG)
        print(engine.complete("Once", n_predict=1).stop_type)
    """)
    assert program.end()[0].split() == ["interrupted", "uninitialized", "limit"]


def test_ctrl_c_without_a_handler_ends_the_program():
    program = Program("""
        from foredraft import Engine
        engine = Engine(TARGET, **CONFIG)
        for i, _ in enumerate(engine.stream("Once", **ENDLESS)):
            if i == 3: print("waits")
    """)
    assert program.line() == "waits"
    program.signal(signal.SIGINT)
    _, err = program.end(-signal.SIGINT)
    assert err.strip().endswith("KeyboardInterrupt")


ENDS = {
    "while it generates": "running = engine.stream('Once', **ENDLESS); next(running)",
    "in an async loop": """
async def go():
    async for _ in engine.stream('Once', **ENDLESS):
        return
asyncio.run(go())""",
    "while an async stream is held": """
async def go():
    global running
    running = engine.stream('Once', **ENDLESS)
    await running.__anext__()
asyncio.run(go())""",
    "while a daemon thread waits": """
threading.Thread(target=lambda: engine.complete('Once', **ENDLESS), daemon=True).start()
while not any(slot['request_id'] for slot in engine.status()['slots']): pass""",
    "while it loads": "library = foredraft._library; library.library().foredraft_load_async(engine._handle, library.encode({'model': TARGET}))",
    "when it is idle": "engine.complete('Once', n_predict=1)",
    "in a cycle": "engine.me = engine; running = engine.stream('Once', **ENDLESS); next(running); running.me = running; del engine, running",
    "with a log line of every kind": "engine.load(TARGET, log_level='debug', **CONFIG); running = engine.stream('Once', **ENDLESS); next(running)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("how, status", [("", 0), ("sys.exit(3)", 3), ("os._exit(4)", 4)])
def test_a_program_may_end_at_any_time(end, how, status):
    program = Program(f"""
import asyncio, logging, os, sys, threading
import foredraft
from foredraft import Engine
logging.basicConfig(stream=open(os.devnull, "w"), level=logging.DEBUG)
engine = Engine(TARGET, **CONFIG)
{ENDS[end]}
print("here")
{how}
""")
    out, _ = program.end(status)
    assert out.split() == ["here"]


#: A program of ctypes alone, with callbacks, which it neither removes nor keeps from the interpreter's end.
BARE = """
import ctypes, json, sys
import foredraft
lib = ctypes.CDLL(str(foredraft._library.path()))
new, load, submit = lib.foredraft_engine_new, lib.foredraft_load, lib.foredraft_submit
new.restype = submit.restype = ctypes.c_void_p
load.argtypes = submit.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
engine, calls = new(), []
@ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)
def on_update(id, user): calls.append(id)
@ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p)
def on_log(level, text, user): calls.append(level)
lib.foredraft_set_log_callback(on_log, None)
lib.foredraft_set_update_callback(ctypes.c_void_p(engine), on_update, None)
assert load(engine, json.dumps({"model": TARGET, "warmup": False, "log_level": "debug"}).encode()) == 0
submit(engine, json.dumps({"prompt": "Once", **ENDLESS}).encode())
n = len(calls)
while len(calls) < n + 20: pass
print("here")
"""


@pytest.mark.parametrize("attempt", range(5))
def test_the_bare_library_with_callbacks_survives_the_interpreter_s_end(attempt):
    assert Program(BARE).end()[0].split() == ["here"]


def test_a_fork_is_refused_and_ends_cleanly():
    program = Program("""
        import multiprocessing, sys
        import foredraft
        from foredraft import Engine
        engine = Engine(TARGET, **CONFIG)

        def child(use):
            try:
                use()
            except foredraft.NotInitializedError as error:
                assert "forked" in str(error) and "spawn" in str(error), error
                sys.exit(5)

        for use in (lambda: engine.complete("Once"), lambda: Engine(TARGET), engine.status, engine.unload, lambda: engine.load(TARGET)):
            process = multiprocessing.get_context("fork").Process(target=child, args=(use,))
            process.start()
            process.join()
            assert process.exitcode == 5, process.exitcode
        # The parent's engine is as it was.
        print(engine.complete("Once", n_predict=3).stop_type)
    """)
    assert program.end()[0].split() == ["limit"]


def test_a_fork_before_the_first_engine_has_its_own():
    program = Program("""
        import multiprocessing
        from foredraft import Engine

        def child():
            with Engine(TARGET, **CONFIG) as engine:
                print(engine.complete("Once", n_predict=3).stop_type)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0, process.exitcode
        child()
    """)
    assert program.end()[0].split() == ["limit", "limit"]


def test_spawned_processes_have_engines_of_their_own(tmp_path):
    source = tmp_path / "spawn.py"
    source.write_text("""
import multiprocessing, sys
from foredraft import Engine

def complete(model):
    with Engine(model, warmup=False) as engine:
        return engine.complete("Once", n_predict=3, temperature=0).text

if __name__ == "__main__":
    with Engine(sys.argv[1], warmup=False) as engine:
        here = engine.complete("Once", n_predict=3, temperature=0).text
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.map(complete, [sys.argv[1]] * 2) == [here] * 2
    print("same")
""")
    done = subprocess.run([sys.executable, str(source), str(TARGET)], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout.split()) == (0, ["same"]), done.stderr
