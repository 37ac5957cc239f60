using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;

namespace Foredraft
{
    /// <summary>
    /// Waits for the updates of an engine's requests, all on one thread that lives while any is awaited. So no thread of the library enters
    /// C#, and no thread of the pool is blocked.
    /// </summary>
    internal sealed class Waiter
    {
        /// <summary>Milliseconds of waits inside the library. A request that is awaited meanwhile waits so long for its turn.</summary>
        private const int Turn = 20;
        /// <summary>The ids of one poll; the library takes 4096 at most.</summary>
        private const int Together = 1024;
        /// <summary>Milliseconds after which a thread that nothing waits for ends.</summary>
        private const int Idle = 2000;

        private readonly IntPtr engine;
        private readonly object sync = new object();
        private readonly Dictionary<ulong, TaskCompletionSource<Json>> waiting = new Dictionary<ulong, TaskCompletionSource<Json>>();
        private bool isRunning;

        public Waiter(IntPtr engine) { this.engine = engine; }

        /// <summary>The answer to a poll of the request that has something new.</summary>
        public Task<Json> Wait(ulong id)
        {
            // Continuations of the answer do not run on the waiting thread.
            var answer = new TaskCompletionSource<Json>(TaskCreationOptions.RunContinuationsAsynchronously);
            lock (sync)
            {
                waiting[id] = answer;
                Monitor.Pulse(sync);
                if (isRunning) return answer.Task;
                isRunning = true;
            }
            new Thread(Run) { IsBackground = true, Name = "foredraft-wait" }.Start();
            return answer.Task;
        }

        /// <summary>The request is not awaited any more.</summary>
        public void Stop(ulong id)
        {
            lock (sync)
            {
                TaskCompletionSource<Json> answer;
                if (!waiting.TryGetValue(id, out answer)) return;
                waiting.Remove(id);
                answer.TrySetCanceled();
            }
        }

        private void Run()
        {
            for (;;)
            {
                ulong[] ids;
                lock (sync)
                {
                    if (waiting.Count == 0 && !Monitor.Wait(sync, Idle) && waiting.Count == 0)
                    {
                        isRunning = false;
                        return;
                    }
                    ids = waiting.Keys.ToArray();
                }
                var parts = (ids.Length + Together - 1) / Together;
                for (var i = 0; i < parts; ++i) Poll(ids.Skip(i * Together).Take(Together).ToArray(), Turn / parts + 1);
            }
        }

        private void Poll(ulong[] ids, int wait)
        {
            var command = new Json { ["ids"] = Json.Array(ids.Select(id => (Json)id)), ["timeout_ms"] = wait };
            var answer = Json.Parse(Native.foredraft_poll(engine, Native.Utf8(command.ToString())).Take());
            var results = answer["results"];
            for (var i = 0; i < ids.Length; ++i)
            {
                // Without results the engine has ended, and each request gets its error.
                var result = results.IsNull ? answer : results[i];
                if (result["success"].Boolean && result["completion_updates"].Count == 0 && !result["finished"].Boolean) continue;
                lock (sync)
                {
                    TaskCompletionSource<Json> awaited;
                    if (!waiting.TryGetValue(ids[i], out awaited)) continue;
                    waiting.Remove(ids[i]);
                    awaited.TrySetResult(result);
                }
            }
        }
    }
}
