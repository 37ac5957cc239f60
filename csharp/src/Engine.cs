using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.Linq;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace Foredraft
{
    /// <summary>
    /// Models and the threads that run them. Engines are independent of each other, and every function may be called from any thread.
    /// Requests and configurations are values of <see cref="Json"/>, or JSON texts; docs/reference.md lists their keys.
    /// </summary>
    public sealed class Engine : IDisposable
    {
        /// <summary>Milliseconds between two looks at a load.</summary>
        private const int Look = 20;
        /// <summary>FOREDRAFT_WOULD_DEADLOCK, for which the status has no error.</summary>
        private const int WouldDeadlock = 5;
        private const string OutlivesDomain = "an engine that outlives its domain cannot call into it: poll, or use new Engine()";

        /// <summary>This domain's objects of named engines.</summary>
        private static readonly Dictionary<string, Engine> Names = new Dictionary<string, Engine>();
        private static readonly Lazy<Engine> Default = new Lazy<Engine>(() => new Engine(IntPtr.Zero, false));

        private readonly IntPtr handle;
        /// <summary>Whether the engine ends with this object. The default engine and named ones stay.</summary>
        private readonly bool isOwned;
        private readonly object sync = new object();
        private readonly Waiter waiter;
        private bool hasCallback;
        private bool isClosed;
        private Action<ulong> updated;
        private Action<ulong, float[], int[]> editLogits;
        /// <summary>The row that the handler changes. The engine's thread alone uses it.</summary>
        private float[] row = new float[0];

        /// <summary>An engine without a model.</summary>
        public Engine() : this(Native.foredraft_engine_new(), true) { }

        private Engine(IntPtr handle, bool isOwned)
        {
            this.handle = handle;
            this.isOwned = isOwned;
            waiter = new Waiter(handle);
            if (isOwned)
            {
                Callbacks.Add(handle, this);
                return;
            }
            GC.SuppressFinalize(this); // the engine stays
            Callbacks.AddOutliving(handle, this);
        }

        ~Engine() { Close(false); }

        /// <summary>The process's default engine, which needs no handle. Dispose leaves it as it is; it outlives domain reloads.</summary>
        public static Engine ProcessDefault { get { return Default.Value; } }

        /// <summary>
        /// The engine of this name in this process. It keeps its models when the application domain is unloaded, as Unity's editor does
        /// for new scripts: the same name finds it again. Dispose releases it.
        /// </summary>
        public static Engine Named(string name)
        {
            lock (Names)
            {
                Engine known;
                if (Names.TryGetValue(name, out known) && !known.isClosed) return known;
                var found = Find(name);
                var handle = found == IntPtr.Zero ? Native.foredraft_engine_new() : found;
                if (found == IntPtr.Zero) Remember(name, handle);
                return Names[name] = new Engine(handle, false);
            }
        }

#if ENABLE_IL2CPP
        // Such a program has one domain, and no scripts are loaded again.
        private static IntPtr Find(string name) { return IntPtr.Zero; }

        private static void Remember(string name, IntPtr handle) { }
#else
        // The process's environment belongs to all domains. A child process inherits it, and must not take the number for its own.
        private static string Variable(string name) { return "FOREDRAFT_ENGINE_" + name; }

        private static string Prefix() { return Process.GetCurrentProcess().Id.ToString(CultureInfo.InvariantCulture) + ":"; }

        private static IntPtr Find(string name)
        {
            var known = Environment.GetEnvironmentVariable(Variable(name));
            var prefix = Prefix();
            long number;
            if (known == null || !known.StartsWith(prefix, StringComparison.Ordinal)
                || !long.TryParse(known.Substring(prefix.Length), NumberStyles.None, CultureInfo.InvariantCulture, out number))
            {
                return IntPtr.Zero;
            }
            var handle = new IntPtr(number);
            return IsEngine(handle) ? handle : IntPtr.Zero;
        }

        private static void Remember(string name, IntPtr handle)
        {
            Environment.SetEnvironmentVariable(Variable(name), Prefix() + handle.ToInt64().ToString(CultureInfo.InvariantCulture));
        }

        private static bool IsEngine(IntPtr handle)
        {
            return Json.Parse(Native.foredraft_status(handle).Take())["code"].Text != "invalid_engine";
        }
#endif

        /// <summary>
        /// What a load can use: <c>devices</c>, the <c>modules</c> of GPUs and why one is not used, and the <c>cpu</c>. Can be called before any
        /// load. The first call starts the backends, which takes as long as a GPU's driver needs.
        /// </summary>
        public static Json Devices() { return Checked(Native.foredraft_devices()); }

        /// <summary>The library's version.</summary>
        public static string Version { get { return Native.Text(Native.foredraft_version()); } }

        /// <summary>
        /// Is called with the id of a request that has an update or has finished, on the engine's thread, which decodes nothing until it
        /// returns. Functions that wait are refused inside it. Its exceptions go to <see cref="Callbacks.Failed"/>. The default engine
        /// and named ones have no such event: a domain could not be unloaded while a thread lives that has called into it.
        /// </summary>
        public event Action<ulong> Updated
        {
            add
            {
                Open();
                if (!isOwned) throw new InvalidOperationException(OutlivesDomain);
                lock (sync)
                {
                    updated += value;
                    if (hasCallback) return;
                    hasCallback = true;
                }
                Native.foredraft_set_update_callback(handle, Callbacks.Update, handle);
            }
            remove
            {
                lock (sync) updated -= value;
            }
        }

        /// <summary>
        /// Sets the handler for the logits of requests with `logits_callback` true. It gets the request's id, the row of logits, which it
        /// changes in place, and all tokens before the position. It runs on the engine's thread, once for each position, before the
        /// position's token is chosen. The row is valid during the call. An exception of the handler cancels the request, and goes to
        /// <see cref="Callbacks.Failed"/>. Null removes it. Not for the default engine and named ones: see <see cref="Updated"/>.
        /// </summary>
        public void SetLogits(Action<ulong, float[], int[]> handler)
        {
            Open();
            if (!isOwned) throw new InvalidOperationException(OutlivesDomain);
            lock (sync) editLogits = handler;
            Native.foredraft_set_logits_callback(handle, handler == null ? null : Callbacks.Logits, handle);
        }

        /// <summary>Loads models in place of what is loaded, and waits for it.</summary>
        public void Load(string config)
        {
            var code = Native.foredraft_load(Open(), Native.Utf8(config));
            if (code == WouldDeadlock) throw new ForedraftException("a load is not allowed inside a callback", "would_deadlock", 409);
            if (code != 0) throw ForedraftException.Of(Status());
        }

        /// <summary>Loads models in place of what is loaded, and waits for it.</summary>
        public void Load(Json config) { Load(Hub.Downloaded(config, null, CancellationToken.None).ToString()); }

        /// <summary>Begins a load, and returns at once; <see cref="Status"/> has `state`, `progress` and `error`.</summary>
        public void BeginLoad(string config) { Native.foredraft_load_async(Open(), Native.Utf8(config)); }

        /// <summary>Begins a load, and returns at once; <see cref="Status"/> has `state`, `progress` and `error`.</summary>
        public void BeginLoad(Json config) { BeginLoad(config.ToString()); }

        /// <summary>Loads models without blocking a thread. Cancelling ends the load.</summary>
        public async Task LoadAsync(Json config, IProgress<double> progress = null, CancellationToken cancel = default(CancellationToken))
        {
            cancel.ThrowIfCancellationRequested();
            try
            {
                BeginLoad(await Task.Run(() => Hub.Downloaded(config, progress, cancel), cancel).ConfigureAwait(false));
                while (!IsLoaded(progress)) await Task.Delay(Look, cancel).ConfigureAwait(false);
            }
            catch (OperationCanceledException)
            {
                Unload();
                throw;
            }
        }

        private bool IsLoaded(IProgress<double> progress)
        {
            var status = Status();
            switch (status["state"].Text)
            {
                case "ready":
                    if (progress != null) progress.Report(1);
                    return true;
                case "loading":
                    if (progress != null) progress.Report(status["progress"].Number);
                    return false;
                case "failed":
                    throw ForedraftException.Of(status);
                default:
                    throw new ForedraftException("the load was ended by another load or unload", "cancelled", 499);
            }
        }

        /// <summary>The engine's status. Never waits.</summary>
        public Json Status() { return Json.Parse(Native.foredraft_status(Open()).Take()); }

        /// <summary>Ends what runs, and frees the models; a load may follow.</summary>
        public void Unload() { Native.foredraft_unload(Open()); }

        /// <summary>
        /// Lets the engine's threads sleep, also in the middle of a decode, until as many calls of <see cref="Resume"/> have followed.
        /// Returns at once. Requests wait meanwhile; they can be cancelled, and the engine can be unloaded.
        /// </summary>
        public void Pause()
        {
            var code = Native.foredraft_pause(Open());
            if (code != 0) throw new ForedraftException("foredraft_pause returned " + code, "internal", 500);
        }

        /// <summary>Ends a pause. After the last one the threads go on where they were.</summary>
        public void Resume()
        {
            if (Native.foredraft_resume(Open()) != 0)
                throw new ForedraftException("resume: the engine is not paused", "invalid_request", 400);
        }

        /// <summary>Queues a request. It ends with the object that is returned: keep that, and read it to its end.</summary>
        public Request Submit(string request) { return new Request(this, Checked(Native.foredraft_submit(Open(), Native.Utf8(request)))); }

        /// <summary>Queues a request. It ends with the object that is returned: keep that, and read it to its end.</summary>
        public Request Submit(Json request) { return Submit(request.ToString()); }

        /// <summary>A whole completion, the library's final response. Waits for it.</summary>
        public Json Complete(string request) { return Checked(Native.foredraft_complete(Open(), Native.Utf8(request))); }

        /// <summary>A whole completion, the library's final response. Waits for it.</summary>
        public Json Complete(Json request) { return Complete(request.ToString()); }

        /// <summary>A completion without blocking a thread: the request, finished. Cancelling ends it.</summary>
        public async Task<Request> CompleteAsync(Json request, CancellationToken cancel = default(CancellationToken))
        {
            var running = Submit(request);
            try
            {
                while (await running.NextAsync(cancel).ConfigureAwait(false) != null) { }
                return running;
            }
            catch
            {
                running.Dispose();
                throw;
            }
        }

        /// <summary>Asks all requests of this engine to end, and returns at once.</summary>
        public void CancelAll() { Checked(Native.foredraft_cancel(Open(), Native.Utf8("{\"all\": true}"))); }

        /// <summary>The ids of a text's tokens.</summary>
        public int[] Tokenize(string text, bool addSpecial = true, bool parseSpecial = true)
        {
            var request = new Json { ["text"] = text, ["add_special"] = addSpecial, ["parse_special"] = parseSpecial };
            return Numbers(Call(Native.foredraft_tokenize, request)["ids"], item => (int)item.Integer);
        }

        /// <summary>The text of tokens.</summary>
        public string Detokenize(IEnumerable<int> tokens, bool special = true)
        {
            var ids = new List<Json>();
            foreach (var token in tokens) ids.Add(token);
            return Call(Native.foredraft_detokenize, new Json { ["tokens"] = Json.Array(ids), ["special"] = special })["content"].Text;
        }

        /// <summary>The embedding of a text; the model must be loaded with `embedding` true. Waits for the engine.</summary>
        public float[] Embed(string text) { return Vector(Call(Native.foredraft_embed, new Json { ["content"] = text })["embedding"]); }

        /// <summary>The embedding of each token of a text. Waits for the engine.</summary>
        public float[][] EmbedTokens(string text)
        {
            var vectors = Call(Native.foredraft_embed, new Json { ["content"] = text, ["of_tokens"] = true })["embedding"];
            return vectors.Items.Select(Vector).ToArray();
        }

        /// <summary>The embeddings of several texts, which are decoded together. Waits for the engine.</summary>
        public float[][] Embed(IEnumerable<string> texts)
        {
            var input = new List<Json>();
            foreach (var text in texts) input.Add(text);
            if (input.Count == 0) return new float[0][];
            var data = Call(Native.foredraft_embed, new Json { ["input"] = Json.Array(input) })["data"];
            return data.Items.Select(entry => Vector(entry["embedding"])).ToArray();
        }

        /// <summary>How well documents answer a query, the best first: `results` has `index` and `relevance_score`. The model must have a
        /// classifier, and be loaded with `reranking` true. Waits for the engine.</summary>
        public Json Rerank(string query, IEnumerable<string> documents, int topN = 0)
        {
            var all = new List<Json>();
            foreach (var document in documents) all.Add(document);
            var request = new Json { ["query"] = query, ["documents"] = Json.Array(all) };
            if (topN > 0) request["top_n"] = topN;
            return Call(Native.foredraft_rerank, request)["results"];
        }

        /// <summary>Prepares a request that may come: its `conversation` is brought to its prompt while no request runs, and with `begin` the
        /// answer is begun. Returns at once, with the id of the preparation.</summary>
        public long Prepare(Json request) => (long)Call(Native.foredraft_prepare, request)["id"].Number;

        /// <summary>The answers to questions about a state: `state` (or `messages`, `prompt`), `questions` by name. The result has the answers
        /// by the same names. Waits for the engine.</summary>
        public Json Decide(Json request)
        {
            var answer = Call(Native.foredraft_decide, request);
            if (answer["stop_type"].Text != "eos") throw new TimeoutException("foredraft: the decision ended by " + answer["stop_type"].Text);
            return answer["answers"];
        }

        /// <summary>How probable each member of an enum is as the answer to a question about a state, by its name. Waits for the engine.</summary>
        public Dictionary<T, double> Decide<T>(Json state, string question) where T : struct
        {
            var options = new Json();
            foreach (var name in Enum.GetNames(typeof(T))) options[name] = Json.Null;
            var asked = new Json { ["type"] = "choice", ["instructions"] = question, ["criteria"] = options };
            var answer = Decide(new Json { ["state"] = state, ["questions"] = new Json { ["answer"] = asked } })["answer"];
            var probabilities = new Dictionary<T, double>();
            foreach (var name in Enum.GetNames(typeof(T)))
                probabilities[(T)Enum.Parse(typeof(T), name)] = answer["probabilities"][name].Number;
            return probabilities;
        }

        /// <summary>The prompt that the model's chat template makes of messages.</summary>
        public string ApplyTemplate(Json request) { return Call(Native.foredraft_apply_template, request)["prompt"].Text; }

        /// <summary>The metadata of the model's file.</summary>
        public Json ModelInfo() { return Call(Native.foredraft_model_info, new Json()); }

        /// <summary>Saves a slot's cache to a file. Waits for the engine.</summary>
        public Json SessionSave(string filename, int slot = 0)
        {
            return Call(Native.foredraft_session_save, new Json { ["filename"] = filename, ["id_slot"] = slot });
        }

        /// <summary>Restores a slot's cache from a file. Waits for the engine.</summary>
        public Json SessionLoad(string filename, int slot = 0)
        {
            return Call(Native.foredraft_session_load, new Json { ["filename"] = filename, ["id_slot"] = slot });
        }

        /// <summary>Empties a slot's cache. Waits for the engine.</summary>
        public Json SessionErase(int slot = 0) { return Call(Native.foredraft_session_erase, new Json { ["id_slot"] = slot }); }

        /// <summary>Does something with the conversations that requests have by name: `action` (`list`, `drop`, `fork`, `pin`, `unpin`,
        /// `rewind`, `save`, `load`), `conversation`, `to`, `turn` or `token`, `filename`. Waits for a step of the engine, and for no request.</summary>
        public Json Conversation(Json request) { return Call(Native.foredraft_conversation, request); }

        /// <summary>Calls a function of <see cref="Native"/>: <c>engine.Call(Native.foredraft_lookup_stats, request)</c>. An error is thrown.</summary>
        public Json Call(Func<IntPtr, byte[], NativeString> function, Json request)
        {
            return Checked(function(Open(), Native.Utf8(request.ToString())));
        }

        /// <summary>Ends what runs, and the engine with it. Harmless at any time. The default engine stays.</summary>
        public void Dispose()
        {
            if (handle == IntPtr.Zero) return;
            Close(true);
            GC.SuppressFinalize(this);
        }

        private void Close(bool releaseNamed)
        {
            if (Leave(releaseNamed)) Callbacks.Remove(handle, !isOwned);
        }

        /// <summary>Leaves the engine, before the domain of this object ends. Uses nothing static, as the handler that calls it.</summary>
        internal void End()
        {
            Leave(false);
            GC.SuppressFinalize(this);
        }

        /// <summary>Leaves the engine; the one of a name is released only where that is asked for. False if it was left before.</summary>
        private bool Leave(bool releaseNamed)
        {
            lock (sync)
            {
                if (isClosed) return false;
                isClosed = true;
            }
            Detach();
            if (isOwned || releaseNamed) Native.foredraft_engine_free(handle);
            return true;
        }

        /// <summary>Removes the callbacks. When it returns, no thread is inside them.</summary>
        private void Detach()
        {
            bool had, edits;
            lock (sync)
            {
                had = hasCallback;
                hasCallback = false;
                edits = editLogits != null;
                editLogits = null;
            }
            if (edits) Native.foredraft_set_logits_callback(handle, null, IntPtr.Zero);
            if (had) Native.foredraft_set_update_callback(handle, null, IntPtr.Zero);
        }

        /// <summary>The engine's thread has news of a request.</summary>
        internal void OnUpdate(ulong id)
        {
            Action<ulong> handlers;
            lock (sync) handlers = updated;
            if (handlers != null) handlers(id);
        }

        /// <summary>The engine's thread is about to choose a token.</summary>
        internal void OnLogits(ulong id, IntPtr logits, int vocabularySize, IntPtr tokens, int tokenCount)
        {
            Action<ulong, float[], int[]> handler;
            lock (sync) handler = editLogits;
            if (handler == null) return;
            if (row.Length != vocabularySize) row = new float[vocabularySize];
            var before = new int[tokenCount];
            Marshal.Copy(logits, row, 0, vocabularySize);
            Marshal.Copy(tokens, before, 0, tokenCount);
            handler(id, row, before);
            Marshal.Copy(row, 0, logits, vocabularySize);
        }

        /// <summary>Waits, on another thread, for the next update of a request, or its end.</summary>
        internal Task<Json> Wait(ulong id) { return waiter.Wait(id); }

        internal void StopWaiting(ulong id) { waiter.Stop(id); }

        internal IntPtr Open()
        {
            lock (sync)
            {
                if (!isClosed) return handle;
            }
            throw new ObjectDisposedException("Engine");
        }

        /// <summary>The object in an answer; throws the error that it is.</summary>
        internal static Json Checked(NativeString answer)
        {
            var read = Json.Parse(answer.Take());
            if (!read["success"].Boolean) throw ForedraftException.Of(read);
            return read;
        }

        private static float[] Vector(Json embedding) { return Numbers(embedding, item => (float)item.Number); }

        private static T[] Numbers<T>(Json array, Func<Json, T> number)
        {
            var numbers = new T[array.Count];
            for (var i = 0; i < numbers.Length; ++i) numbers[i] = number(array[i]);
            return numbers;
        }
    }
}
