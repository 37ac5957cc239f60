using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Text.RegularExpressions;
using System.Threading;
using System.Threading.Tasks;

namespace Foredraft.Tests
{
    public static class EngineTests
    {
        private static readonly Lazy<Engine> shared = new Lazy<Engine>(() => Loaded());

        private static Json Config(bool isolate = false, string level = "none")
        {
            return new Json
            {
                ["model"] = Runner.Model("target"), ["model_draft"] = Runner.Model("draft"), ["n_ctx"] = 512, ["n_threads"] = 1,
                ["n_parallel"] = 2, ["warmup"] = false, ["isolate"] = isolate, ["log_level"] = level,
            };
        }

        private static Engine Loaded(bool isolate = false, string level = "none")
        {
            var engine = new Engine();
            engine.Load(Config(isolate, level));
            return engine;
        }

        private static Json Story(int tokens = 40)
        {
            return new Json { ["prompt"] = "Once upon a time", ["n_predict"] = tokens, ["seed"] = 7 };
        }

        /// <summary>It does not end by itself.</summary>
        private static Json Endless() { return new Json { ["prompt"] = "Once upon a time", ["ignore_eos"] = true, ["seed"] = 7 }; }

        private static string Polled(Request request)
        {
            while (!request.Finished)
            {
                request.Poll();
                Thread.Sleep(1);
            }
            return request.Text;
        }

        [Test]
        public static void a_prepared_turn_finds_its_prompt()
        {
            var turn = new Json { ["prompt"] = "Once upon a time, there was a cat that", ["conversation"] = "cat", ["n_predict"] = 4, ["seed"] = 1 };
            var alone = shared.Value.Complete(turn)["content"].Text;
            var begun = Json.Parse(turn.ToString());
            begun["begin"] = true;
            Check.That(shared.Value.Prepare(begun) > 0, "an id");
            Check.Equal(alone, shared.Value.Complete(turn)["content"].Text);
            Check.Throws<ForedraftException>(() => shared.Value.Prepare(new Json { ["prompt"] = "a" }));
        }

        private enum Thing { kite, hat }

        [Test]
        public static void decisions_have_the_probabilities_of_each_option()
        {
            var things = shared.Value.Decide<Thing>("Tom had a red kite.", "What did Tom have?");
            Check.Equal(2, things.Count);
            Check.That(Math.Abs(things[Thing.kite] + things[Thing.hat] - 1) < 1e-12, things[Thing.kite].ToString());
            var lost = new Json { ["type"] = "noul", ["instructions"] = "Tom lost it." };
            var answers = shared.Value.Decide(new Json { ["state"] = "Tom had a red kite.", ["questions"] = new Json { ["lost"] = lost } });
            Check.That(answers["lost"]["noul"].Number > 0, answers.ToString());
            Check.Throws<ForedraftException>(() => shared.Value.Decide(new Json { ["state"] = "a" }));
        }

        [Test]
        public static void every_way_of_reading_gives_the_same_text()
        {
            var engine = shared.Value;
            var expected = engine.Complete(Story())["content"].Text;
            Check.That(expected.Length > 40, expected);
            Check.Equal(expected, Polled(engine.Submit(Story())));
            Check.Equal(expected, string.Concat(engine.Submit(Story()).Select(update => update.Content)));
            var request = engine.CompleteAsync(Story()).Result;
            Check.Equal(expected, request.Text);
            Check.That(request.Finished && request.Answer["stop_type"].Text == "limit", request.Answer);
            Check.Equal(40L, request.Answer["tokens_predicted"].Integer);
        }

        [Test]
        public static void several_texts_have_the_embeddings_of_each()
        {
            var config = Config();
            config["embedding"] = true;
            using (var engine = new Engine())
            {
                engine.Load(config);
                var texts = new[] { "Tom had a hat.", "Mia" };
                var both = engine.Embed(texts);
                Check.That(both.Length == 2 && both[0].Length > 0, both.Length);
                for (var i = 0; i < texts.Length; ++i) Check.That(both[i].SequenceEqual(engine.Embed(texts[i])), texts[i]);
                var ofTokens = engine.EmbedTokens(texts[0]);
                Check.Equal(engine.Tokenize(texts[0]).Length, ofTokens.Length);
                Check.That(ofTokens.All(vector => vector.Length == both[0].Length), ofTokens[0].Length);
                var error = Check.Throws<ForedraftException>(() => engine.Rerank("a", texts));
                Check.That(error.Message.Contains("classifier"), error.Message);
            }
        }

        [Test]
        public static void a_slot_can_be_erased()
        {
            using (var engine = Loaded())
            {
                engine.Complete(new Json { ["prompt"] = "Once upon a time", ["n_predict"] = 4, ["id_slot"] = 1 });
                Check.That(engine.SessionErase(1)["n_erased"].Integer > 4, "it had tokens");
                Check.Equal(0L, engine.SessionErase(1)["n_erased"].Integer);
            }
        }

        [Test]
        public static void several_completions_are_told_apart()
        {
            var asked = Story(12);
            asked["n_cmpl"] = 2;
            var request = shared.Value.Submit(asked);
            var texts = new[] { "", "" };
            foreach (var update in request) texts[update.Index] += update.Content;
            Check.That(texts[0] != "" && texts[1] != "" && texts[0] != texts[1], texts[0]);
            Check.That(request.Answers.Count == 2 && request.Answers[1]["index"].Integer == 1, request.Answers.Count);
        }

        [Test]
        public static void fields_that_are_left_out_leave_requests_whole()
        {
            var asked = Story(3);
            var expected = shared.Value.Complete(asked)["content"].Text;
            asked["response_fields"] = Json.Array("content");
            foreach (var engine in new[] { shared.Value, Loaded(true) })
            {
                Check.Equal(expected, engine.Complete(asked)["content"].Text);
                var request = engine.CompleteAsync(asked).Result;
                Check.Equal(expected, request.Text);
                Check.That(!request.Answer.IsNull && request.Answer["model"].IsNull, request.Answer);
                var polled = engine.Submit(asked);
                Check.Equal(expected, Polled(polled));
                Check.That(!polled.Answer.IsNull, "no answer");
                if (engine != shared.Value) engine.Dispose();
            }
        }

        [Test]
        public static void chats_have_a_message()
        {
            var messages = Json.Array(new Json { ["role"] = "user", ["content"] = "Tell me a story about a fox." });
            var request = new Json { ["messages"] = messages, ["n_predict"] = 20, ["temperature"] = 0 };
            var message = shared.Value.Complete(request)["message"];
            Check.That(message["role"].Text == "assistant" && message["content"].Text.Length > 10, message);
            Check.That(shared.Value.ApplyTemplate(new Json { ["messages"] = messages }).Contains("fox"), "the prompt");
        }

        [Test]
        public static void texts_come_back_from_their_tokens()
        {
            foreach (var text in new[] { "Zoë said \"two\n€ 🦀\"", "" })
            {
                Check.Equal(text, shared.Value.Detokenize(shared.Value.Tokenize(text, addSpecial: false)));
            }
            // Half a character is an error.
            Check.Equal("invalid_json", Check.Throws<ForedraftException>(() => shared.Value.Tokenize("🦀".Substring(0, 1))).Code);
        }

        [Test]
        public static void a_paused_engine_waits()
        {
            var engine = shared.Value;
            var expected = engine.Complete(Story())["content"].Text;
            engine.Pause();
            engine.Pause();
            var request = engine.Submit(Story());
            engine.Resume();
            Check.That(engine.Status()["paused"].Boolean, engine.Status());
            Until(() => engine.Status()["queue"].Integer == 1, engine);
            Thread.Sleep(50);
            Check.That(!request.Finished && engine.Status()["queue"].Integer == 1, engine.Status());
            engine.Resume();
            Check.Equal(expected, Polled(request));
            Check.That(!engine.Status()["paused"].Boolean, engine.Status());
            Check.Equal("invalid_request", Check.Throws<ForedraftException>(() => engine.Resume()).Code);
        }

        [Test]
        public static void failures_have_a_code()
        {
            var wrong = Check.Throws<ForedraftException>(() => shared.Value.Complete(new Json { ["prompt"] = "a", ["top_p"] = 1.5 }));
            Check.Equal("invalid_request 400 top_p: expected a number from 0 to 1, got 1.5", wrong.Code + " " + wrong.Status + " " + wrong.Message);
            Check.Equal("invalid_json", Check.Throws<ForedraftException>(() => shared.Value.Submit("{")).Code);
            Check.Throws<ArgumentException>(() => shared.Value.Submit("{}\0"));
            using (var engine = new Engine())
            {
                Check.Equal("not_initialized", Check.Throws<ForedraftException>(() => engine.Complete(Story())).Code);
                var missing = Check.Throws<ForedraftException>(() => engine.Load(new Json { ["model"] = "/missing.gguf", ["log_level"] = "none" }));
                Check.Equal("model_error /missing.gguf", missing.Code + " " + missing.MissingFile);
                engine.Dispose();
                Check.Throws<ObjectDisposedException>(() => engine.Status());
            }
        }

        [Test]
        public static void a_failure_after_the_submit_ends_the_loop_with_an_exception()
        {
            var request = new Json { ["prompt"] = string.Concat(Enumerable.Repeat("word ", 4000)), ["on_overflow"] = "error" };
            Check.Equal("context_full", Check.Throws<ForedraftException>(() => { foreach (var update in shared.Value.Submit(request)) { } }).Code);
            Check.Equal("context_full", Check.Throws<ForedraftException>(() => Polled(shared.Value.Submit(request))).Code);
            var awaited = Check.Throws<AggregateException>(() => shared.Value.CompleteAsync(request).Wait());
            Check.Equal("context_full", ((ForedraftException)awaited.InnerException).Code);
        }

        [Test]
        public static void requests_are_cancelled()
        {
            var engine = shared.Value;
            var request = engine.Submit(Endless());
            request.NextAsync().Wait();
            request.Cancel();
            Polled(request);
            Check.Equal("cancelled", request.Answer["stop_type"].Text);
            // Leaving the loop cancels.
            request = engine.Submit(Endless());
            foreach (var update in request) break;
            Polled(request);
            Check.Equal("cancelled", request.Answer["stop_type"].Text);
            // The token cancels.
            using (var source = new CancellationTokenSource(200))
            {
                var task = engine.CompleteAsync(Endless(), source.Token);
                Check.That(Check.Throws<AggregateException>(() => task.Wait(600000)).InnerException is OperationCanceledException, task.Status);
            }
            Idle(engine);
        }

        private static void Idle(Engine engine)
        {
            Until(() => engine.Status()["slots"].Items.All(slot => slot["state"].Text == "idle"), engine);
        }

        /// <summary>Waits for it; fails after ten minutes, for a machine that does much else.</summary>
        private static void Until(Func<bool> isSo, Engine engine) { Check.That(SpinWait.SpinUntil(isSo, 600000), engine.Status()); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Forget(Engine engine)
        {
            // On a thread of its own, so that no stack remembers the request.
            var thread = new Thread(() => engine.Submit(Endless()));
            thread.Start();
            thread.Join();
        }

        [Test]
        public static void a_forgotten_request_is_cancelled()
        {
            Forget(shared.Value);
            Until(() =>
            {
                GC.Collect();
                GC.WaitForPendingFinalizers();
                return shared.Value.Status()["slots"].Items.All(slot => slot["state"].Text == "idle");
            }, shared.Value);
        }

        [Test]
        public static void disposing_the_engine_ends_who_waits()
        {
            var engine = Loaded();
            var task = engine.CompleteAsync(Endless());
            Thread.Sleep(100);
            engine.Dispose();
            // The request ends as cancelled, or with an error if that could not be polled any more.
            Check.That(Task.WaitAny(new Task[] { task }, 600000) == 0, "it waits");
            var ended = task.IsFaulted ? ((ForedraftException)task.Exception.InnerException).Code : task.Result.Answer["stop_type"].Text;
            Check.That(ended == "cancelled" || ended == "invalid_engine", ended);
            Check.Throws<ObjectDisposedException>(() => engine.Submit(Story()));
        }

        [Test]
        public static void loads_are_awaited_and_cancelled()
        {
            using (var engine = new Engine())
            {
                var told = new List<double>();
                engine.LoadAsync(Config(), new Told(told)).Wait();
                Check.That(told.Count > 0 && told.Last() == 1, told.Count);
                var failed = Check.Throws<AggregateException>(() => engine.LoadAsync(new Json { ["model"] = "/missing.gguf", ["log_level"] = "none" }).Wait());
                Check.Equal("model_error", ((ForedraftException)failed.InnerException).Code);
                // A paused engine's load does not end before the cancel.
                engine.Pause();
                using (var source = new CancellationTokenSource())
                {
                    var load = engine.LoadAsync(Config(), null, source.Token);
                    source.Cancel();
                    Check.That(Check.Throws<AggregateException>(() => load.Wait()).InnerException is OperationCanceledException, load.Status);
                }
                engine.Resume();
                Check.Equal("uninitialized", engine.Status()["state"].Text);
            }
        }

        private sealed class Told : IProgress<double>
        {
            private readonly List<double> told;
            public Told(List<double> told) { this.told = told; }
            public void Report(double value) { told.Add(value); }
        }

        /// <summary>60 polls a second while another thread collects 200 times, and until all have happened often, with an update callback and the
        /// log at `debug`.</summary>
        private static void Collected(bool isolate)
        {
            int updates = 0, lines = 0, collections = 0, frames = 0, requests = 0;
            Func<bool> isEnough = () => collections >= 200 && updates > 100 && lines > 100 && frames > 10;
            Callbacks.SetLog((level, text) => { if (text.Length > 0) Interlocked.Increment(ref lines); });
            using (var engine = Loaded(isolate, "debug"))
            {
                engine.Updated += id => { new List<object>(100).Add(id); Interlocked.Increment(ref updates); };
                var expected = engine.Complete(Story(60))["content"].Text;
                var collector = new Thread(() =>
                {
                    for (; !isEnough() && requests < 500; ++collections)
                    {
                        GC.Collect();
                        Thread.Sleep(5);
                    }
                });
                collector.Start();
                for (; collector.IsAlive; ++requests)
                {
                    var request = engine.Submit(Story(60));
                    for (; !request.Finished; ++frames)
                    {
                        request.Poll();
                        Thread.Sleep(1000 / 60);
                    }
                    Check.Equal(expected, request.Text);
                    Check.Equal(expected, engine.CompleteAsync(Story(60)).Result.Text);
                }
            }
            Callbacks.SetLog(null);
            Check.That(isEnough(),
                string.Format("{0} collections, {1} updates, {2} lines, {3} frames", collections, updates, lines, frames));
        }

        [Test]
        public static void collections_stop_threads_that_called_back() { Collected(false); }

        [Test]
        public static void collections_stop_threads_of_an_isolated_engine() { Collected(true); }

        [Test]
        public static void thousands_of_requests_are_awaited_at_once()
        {
            const int Count = 5000;
            using (var engine = new Engine())
            {
                var config = Config();
                config["max_queue"] = Count;
                engine.Load(config);
                engine.Pause(); // so none ends by itself
                var requests = new List<Request>();
                for (var i = 0; i < Count; ++i) requests.Add(engine.Submit(Story(1)));
                var awaited = requests.Select(request => request.NextAsync()).ToList();
                foreach (var i in new[] { 0, Count / 2, Count - 1 })
                {
                    requests[i].Cancel();
                    Check.That(awaited[i].Result == null && requests[i].Answer["stop_type"].Text == "cancelled", requests[i].Answer);
                }
                var failed = awaited.Where(task => task.IsFaulted).ToList();
                Check.That(failed.Count == 0, failed.Count + " failed: " + failed.Select(task => task.Exception).FirstOrDefault());
                engine.Resume();
            }
        }

        [Test]
        public static void exceptions_in_callbacks_are_caught()
        {
            var caught = new List<string>();
            Action<Exception> note = exception => { lock (caught) caught.Add(exception.Message); };
            Callbacks.Failed += note;
            Callbacks.SetLog((level, text) => { throw new Exception("of the log"); });
            using (var engine = Loaded(false, "debug"))
            {
                engine.Updated += id => { throw new Exception("of an update"); };
                Check.Equal(engine.Complete(Story(8))["content"].Text, engine.CompleteAsync(Story(8)).Result.Text);
            }
            Callbacks.SetLog(null);
            Callbacks.Failed -= note;
            Check.That(caught.Contains("of the log") && caught.Contains("of an update"), string.Join(", ", caught));
        }

        [Test]
        public static void logits_are_changed_with_and_without_speculation()
        {
            var caught = new List<string>();
            Action<Exception> note = exception => { lock (caught) caught.Add(exception.Message); };
            Callbacks.Failed += note;
            using (var engine = Loaded())
            {
                var request = Story(40);
                request["logits_callback"] = true;
                Check.Equal("invalid_request", Check.Throws<ForedraftException>(() => engine.Complete(request)).Code);
                var lengths = new List<int>();
                engine.SetLogits((id, logits, tokens) =>
                {
                    lengths.Add(tokens.Length);
                    if (tokens.Length % 3 == 0) logits[70] = 100;
                    GC.Collect();
                });
                var changed = engine.Complete(request)["content"].Text;
                request["speculative"] = false;
                var first = lengths[0];
                lengths.Clear();
                Check.Equal(changed, engine.Complete(request)["content"].Text);
                Check.Equal(40, lengths.Count);
                for (var i = 0; i < 40; ++i) Check.Equal(first + i, lengths[i]);
                Check.That(changed != engine.Complete(Story(40))["content"].Text, "the handler decides");
                engine.SetLogits((id, logits, tokens) => { throw new Exception("of a row"); });
                Check.Equal("cancelled", engine.Complete(request)["stop_type"].Text);
                engine.SetLogits(null);
                Check.Throws<ForedraftException>(() => engine.Submit(request));
            }
            Callbacks.Failed -= note;
            Check.Equal("of a row", string.Join(", ", caught));
        }

        [Test]
        public static void calls_that_wait_are_refused_in_a_callback()
        {
            using (var engine = Loaded())
            {
                string code = null, load = null;
                engine.Updated += id =>
                {
                    if (code != null) return;
                    code = Check.Throws<ForedraftException>(() => engine.Complete(Story(1))).Code;
                    load = Check.Throws<ForedraftException>(() => engine.Load(Config())).Code;
                };
                engine.Complete(Story(4));
                Check.Equal("would_deadlock would_deadlock", code + " " + load);
            }
        }

#if NETCOREAPP
        [Test]
#endif
        public static void the_default_engine_is_one_object_and_stays()
        {
            Check.That(Engine.ProcessDefault == Engine.ProcessDefault, "two objects");
            Engine.ProcessDefault.Load(Config());
            Engine.ProcessDefault.Dispose();
            Check.Equal("ready", Engine.ProcessDefault.Status()["state"].Text);
            Engine.ProcessDefault.Unload();
        }

        [Test]
        public static void a_named_engine_is_released_and_made_again()
        {
            Engine.Named("tests").Load(Config());
            Check.Equal("ready", Engine.Named("tests").Status()["state"].Text);
            Engine.Named("tests").Dispose();
            Check.Equal("uninitialized", Engine.Named("tests").Status()["state"].Text);
            Engine.Named("tests").Dispose();
        }

        [Test]
        public static void declarations_are_those_of_the_header()
        {
            var header = File.ReadAllText(Environment.GetEnvironmentVariable("FOREDRAFT_HEADER"));
            var declared = Regex.Matches(header, @"^FOREDRAFT_API .*?(foredraft_\w+)\((.*)\);", RegexOptions.Multiline).Cast<Match>()
                .Select(match => match.Groups[1].Value + " " + (match.Groups[2].Value == "void" ? 0 : match.Groups[2].Value.Split(',').Length));
            var ours = typeof(Native).GetMethods().Where(method => method.Name.StartsWith("foredraft_", StringComparison.Ordinal))
                .Select(method => method.Name + " " + method.GetParameters().Length);
            Check.Equal(string.Join("\n", declared.OrderBy(name => name, StringComparer.Ordinal)), string.Join("\n", ours.OrderBy(name => name, StringComparer.Ordinal)));
            Check.Equal(Native.AbiVersion, Native.foredraft_abi_version());
            Check.That(Regex.IsMatch(Engine.Version, @"^\d+\.\d+\.\d+"), Engine.Version);
            Check.That(Engine.Devices()["cpu"]["cores"].Integer >= 1 && Engine.Devices()["devices"].Count >= 1, Engine.Devices().ToString());
        }

        [Test]
        public static void returned_strings_are_released()
        {
            var status = Native.foredraft_status(IntPtr.Zero);
            Check.That(!status.IsInvalid && status.Take().StartsWith("{", StringComparison.Ordinal) && status.IsClosed, "the status");
        }
    }
}
