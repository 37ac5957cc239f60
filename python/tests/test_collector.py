"""The garbage collector: it can run anywhere, on any thread and under any lock, and ends streams and engines there."""
import gc
import os

from conftest import DRAFT, Program, until
from foredraft import Engine, _library


def test_streams_are_collected_at_each_line_of_the_notifier():
    Program("""
        import asyncio, faulthandler, gc, sys
        from foredraft import Engine, _notify

        faulthandler.dump_traceback_later(500, exit=True)
        gc.disable()
        left, seen = [], set()

        def collect():
            cycle = [left.pop()]
            cycle.append(cycle)
            del cycle
            gc.collect()

        def trace(frame, event, argument):
            if frame.f_code.co_filename != _notify.__file__:
                return None
            if event == "line" and left and frame.f_lineno not in seen:
                seen.add(frame.f_lineno)
                collect()
            return trace

        async def use(engine):
            for stream in [engine.stream("Once", **ENDLESS) for _ in range(8)]:
                await stream.__anext__()
                left.append(stream)
            del stream
            sys.settrace(trace)
            await engine.complete_async("Once", n_predict=20)
            async for _ in engine.stream("Once", **ENDLESS):
                break
            await asyncio.sleep(0)

        async def main():
            count = -1
            while count < len(seen):
                count = len(seen)
                await use(engine)
                sys.settrace(None)
                left.clear()
            await use(engine)
            engine.close()
            await asyncio.sleep(0)

        engine = Engine(TARGET, **{**CONFIG, "n_parallel": 10})
        asyncio.run(main())
        assert len(seen) > 20, seen
    """).end()


def test_an_engine_is_collected_while_a_log_handler_is_locked():
    Program("""
        import faulthandler, gc, logging
        from foredraft import Engine

        faulthandler.dump_traceback_later(500, exit=True)

        class Handler(logging.Handler):
            def emit(self, record):
                if record.msg == "collect":
                    gc.collect()

        logger = logging.getLogger("foredraft")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(Handler())
        engine = Engine(TARGET, **CONFIG, log_level="debug")
        stream = engine.stream("Once", **ENDLESS)
        next(stream)
        cycle = [engine, stream]
        cycle.append(cycle)
        gc.disable()
        del engine, stream, cycle
        logger.info("collect")
    """).end()


def test_an_engine_is_collected_on_its_own_thread():
    Program("""
        import faulthandler, gc, threading
        from foredraft import Engine

        faulthandler.dump_traceback_later(500, exit=True)
        for _ in range(5):
            engine = Engine(TARGET, **CONFIG)
            may_collect, has_collected = threading.Event(), threading.Event()

            def processor(tokens, logits):
                may_collect.wait()
                gc.collect()
                has_collected.set()

            cycle = [engine, engine.stream("Once", logits_processor=processor, **ENDLESS)]
            cycle.append(cycle)
            gc.disable()
            del engine, cycle
            may_collect.set()
            assert has_collected.wait(500)
            gc.enable()
    """).end()


def test_a_collected_engine_has_its_pipe_until_it_has_ended(monkeypatch):
    engine = Engine(DRAFT, n_ctx=256, warmup=False)
    pipe = engine._notifier.config["notify_fd"]
    ended, free_engine = [], _library.free_engine

    def free(*arguments):
        ended.append(os.fstat(pipe))
        free_engine(*arguments)

    monkeypatch.setattr(_library, "free_engine", free)
    cycle = [engine]
    cycle.append(cycle)
    del engine, cycle
    gc.collect()
    until("a freed engine", lambda: ended)
