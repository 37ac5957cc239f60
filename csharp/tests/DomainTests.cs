#if !NETCOREAPP
using System;
using System.Diagnostics;
using System.Threading;

namespace Foredraft.Tests
{
    /// <summary>The part of a test that runs in another application domain, as Unity's editor runs scripts.</summary>
    public sealed class Scripts : MarshalByRefObject
    {
        private static int updates;
        private static Request kept;

        public int Load()
        {
            var engine = Engine.Named("domains");
            engine.Load(new Json { ["model"] = Runner.Model("draft"), ["n_ctx"] = 512, ["n_threads"] = 1, ["log_level"] = "none" });
            Check.Throws<InvalidOperationException>(() => { engine.Updated += id => { }; });
            Check.Throws<InvalidOperationException>(() => Callbacks.SetLog((level, text) => { }));
            Engine.Named("another").Dispose();
            // It still runs when the domain ends, and so does an engine without a name that calls back.
            kept = engine.Submit("{\"prompt\": \"Once upon a time\", \"ignore_eos\": true}");
            var other = new Engine();
            other.Updated += id => Interlocked.Increment(ref updates);
            other.Load(new Json { ["model"] = Runner.Model("draft"), ["n_ctx"] = 512, ["n_threads"] = 1, ["log_level"] = "none" });
            var running = kept;
            kept = other.Submit("{\"prompt\": \"Once upon a time\", \"ignore_eos\": true}");
            kept.NextAsync().Wait();
            Check.That(!running.Finished, "it has ended");
            // A poll sees what is new before the callback says so.
            SpinWait.SpinUntil(() => Volatile.Read(ref updates) > 0, 600000);
            return updates;
        }

        public string Find()
        {
            var engine = Engine.Named("domains");
            var state = engine.Status()["state"].Text;
            engine.CancelAll();
            return state + engine.CompleteAsync(Json.Parse("{\"prompt\": \"Once upon a time\", \"n_predict\": 8, \"seed\": 1}")).Result.Text;
        }

        /// <summary>A log handler first, and then an engine that outlives the domain.</summary>
        public void Log()
        {
            Callbacks.SetLog((level, text) => { });
            Check.Throws<InvalidOperationException>(() => Engine.Named("log"));
            GC.Collect();
            GC.WaitForPendingFinalizers();
            Callbacks.SetLog(null);
            Engine.Named("log").Dispose();
            Callbacks.SetLog((level, text) => { });
        }

        public void Default() { EngineTests.the_default_engine_is_one_object_and_stays(); }

        /// <summary>Leaves an engine that goes on calling back.</summary>
        public void LeaveRunning()
        {
            var engine = new Engine();
            engine.Updated += id => Interlocked.Increment(ref updates);
            engine.Load(new Json { ["model"] = Runner.Model("draft"), ["n_ctx"] = 512, ["n_threads"] = 1, ["log_level"] = "none" });
            Callbacks.SetLog((level, text) => { });
            kept = engine.Submit("{\"prompt\": \"Once upon a time\", \"ignore_eos\": true, \"n_predict\": -1}");
            Check.That(SpinWait.SpinUntil(() => Volatile.Read(ref updates) > 0, 600000), "no updates");
        }

        public void Release() { Engine.Named("domains").Dispose(); }
    }

    public static class DomainTests
    {
        private static Scripts In(AppDomain domain)
        {
            return (Scripts)domain.CreateInstanceAndUnwrap(typeof(Scripts).Assembly.FullName, typeof(Scripts).FullName);
        }

        /// <summary>Runs a part of a test in a domain of its own, and unloads the domain, also after a failure.</summary>
        private static void Within(string name, Action<Scripts> part)
        {
            var domain = AppDomain.CreateDomain(name);
            try
            {
                part(In(domain));
            }
            finally
            {
                AppDomain.Unload(domain);
            }
        }

        /// <summary>In a domain of its own: no domain that has used the default engine may take the log.</summary>
        [Test]
        public static void the_default_engine_stays()
        {
            Within("default", scripts => scripts.Default());
            Within("log", scripts => scripts.Log());
        }

        /// <summary>The program of <see cref="a_program_ends_while_an_engine_of_another_domain_calls_back"/>.</summary>
        public static void EndWhileAnotherDomainRuns() { In(AppDomain.CreateDomain("runs")).LeaveRunning(); }

        [Test]
        public static void a_program_ends_while_an_engine_of_another_domain_calls_back()
        {
            var program = new ProcessStartInfo("mono", typeof(Runner).Assembly.Location + " " + Runner.EndsWhileAnotherDomainRuns) { UseShellExecute = false };
            using (var running = Process.Start(program))
            {
                var ended = running.WaitForExit(600000);
                if (!ended) running.Kill();
                Check.That(ended, "it hangs");
                Check.Equal(0, running.ExitCode);
            }
        }

        [Test]
        public static void a_named_engine_is_found_again_after_domain_reloads()
        {
            string first = null;
            for (var i = 0; i < 5; ++i)
            {
                Within("scripts " + i, scripts =>
                {
                    if (i == 0) Check.That(scripts.Load() > 0, "no updates");
                    var found = scripts.Find();
                    first = first ?? found;
                    Check.That(found == first && found.StartsWith("ready", StringComparison.Ordinal) && found.Length > 10, found);
                    if (i == 4) scripts.Release();
                });
            }
        }
    }
}
#endif
