#if NETSTANDARD2_1 || NETSTANDARD2_1_OR_GREATER || NETCOREAPP3_0 || NETCOREAPP3_1 || NETCOREAPP3_0_OR_GREATER || NET_STANDARD_2_1
#define FOREDRAFT_ASYNC_STREAMS
#endif
using System;
using System.Collections;
using System.Collections.Generic;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Foredraft
{
    /// <summary>A piece of a completion.</summary>
    public sealed class CompletionUpdate
    {
        internal CompletionUpdate(Json json) { Json = json; }

        /// <summary>The whole update: `delta`, `tokens`, `completion_probabilities`, ...</summary>
        public Json Json { get; private set; }

        /// <summary>The text of this piece.</summary>
        public string Content { get { return Json["content"].Text; } }

        /// <summary>Which completion of the request it belongs to; 0 if the request has one.</summary>
        public int Index { get { return (int)Json["index"].Integer; } }
    }

    /// <summary>
    /// A queued request, for one reader at a time: <see cref="Poll"/> in a frame loop, <c>foreach</c> on a thread that may wait,
    /// <see cref="NextAsync"/> or <c>await foreach</c> elsewhere. Dispose cancels it, and so does the garbage collector.
    /// </summary>
    public sealed class Request : IDisposable, IEnumerable<CompletionUpdate>
#if FOREDRAFT_ASYNC_STREAMS
        , IAsyncEnumerable<CompletionUpdate>
#endif
    {
        private static readonly CompletionUpdate[] None = new CompletionUpdate[0];

        private readonly Engine engine;
        private readonly byte[] poll;
        private readonly byte[] waitingPoll;
        private readonly Queue<CompletionUpdate> ready = new Queue<CompletionUpdate>();
        private readonly StringBuilder text = new StringBuilder();
        private readonly List<Json> answers = new List<Json>();
        private ForedraftException failure;
        private volatile bool hasEnded;

        internal Request(Engine engine, Json reply)
        {
            this.engine = engine;
            Id = (ulong)reply["id"].Integer;
            Reply = reply;
            poll = Native.Utf8(new Json { ["id"] = Id }.ToString());
            waitingPoll = Native.Utf8(new Json { ["id"] = Id, ["timeout_ms"] = 1000 }.ToString());
        }

        ~Request() { Cancel(); }

        /// <summary>The request's number, unique in the process.</summary>
        public ulong Id { get; private set; }

        /// <summary>The answer of the submit: `prompt_stats`, `warnings`.</summary>
        public Json Reply { get; private set; }

        /// <summary>True once the request has ended and its last update was read.</summary>
        public bool Finished { get { return hasEnded && ready.Count == 0; } }

        /// <summary>The text so far, of updates that were read; of all completions, if the request has several.</summary>
        public string Text { get { return text.ToString(); } }

        /// <summary>The final response: `message`, `usage`, `stop_type`, `timings`, ...; null before the end.</summary>
        public Json Answer { get { return answers.Count == 0 ? Json.Null : answers[0]; } }

        /// <summary>The final responses of all completions, by `index`; those that have ended.</summary>
        public IList<Json> Answers { get { return answers.AsReadOnly(); } }

        /// <summary>The updates since the last call, often none. Never waits: for a frame loop. The request's failure is thrown.</summary>
        public IList<CompletionUpdate> Poll()
        {
            if (!hasEnded) Ask(poll);
            if (ready.Count == 0)
            {
                ThrowFailure();
                return None;
            }
            var updates = new List<CompletionUpdate>();
            while (ready.Count > 0) updates.Add(Read());
            return updates;
        }

        /// <summary>The next update; null at the end. Waits for it without blocking a thread. Cancelling ends the request.</summary>
        public async Task<CompletionUpdate> NextAsync(CancellationToken cancel = default(CancellationToken))
        {
            if (ready.Count == 0 && !hasEnded) Ask(poll);
            while (ready.Count == 0 && !hasEnded)
            {
                var answer = engine.Wait(Id);
                try
                {
                    using (cancel.Register(() => engine.StopWaiting(Id))) Take(await answer.ConfigureAwait(false));
                }
                catch (OperationCanceledException)
                {
                    Cancel();
                    throw new OperationCanceledException(cancel);
                }
            }
            if (ready.Count > 0) return Read();
            ThrowFailure();
            return null;
        }

        /// <summary>Asks it to end, and returns at once. From any thread. The last update follows.</summary>
        public void Cancel()
        {
            if (hasEnded) return;
            try
            {
                Native.foredraft_cancel(engine.Open(), poll).Dispose();
            }
            catch (ObjectDisposedException)
            {
                // The engine has ended, and the request with it.
            }
        }

        public void Dispose()
        {
            Cancel();
            GC.SuppressFinalize(this);
        }

        /// <summary>Waits for each update on this thread. Leaving the loop cancels the request.</summary>
        public IEnumerator<CompletionUpdate> GetEnumerator()
        {
            try
            {
                for (;;)
                {
                    while (ready.Count == 0 && !hasEnded) Ask(waitingPoll);
                    if (ready.Count == 0) break;
                    yield return Read();
                }
            }
            finally
            {
                Dispose();
            }
            ThrowFailure();
        }

        IEnumerator IEnumerable.GetEnumerator() { return GetEnumerator(); }

#if FOREDRAFT_ASYNC_STREAMS
        /// <summary>Waits for each update without blocking a thread. Leaving the loop cancels the request.</summary>
        public IAsyncEnumerator<CompletionUpdate> GetAsyncEnumerator(CancellationToken cancel = default(CancellationToken))
        {
            return new AsyncUpdates(this, cancel);
        }

        private sealed class AsyncUpdates : IAsyncEnumerator<CompletionUpdate>
        {
            private readonly Request request;
            private readonly CancellationToken cancel;

            public AsyncUpdates(Request request, CancellationToken cancel)
            {
                this.request = request;
                this.cancel = cancel;
            }

            public CompletionUpdate Current { get; private set; }

            public async ValueTask<bool> MoveNextAsync()
            {
                Current = await request.NextAsync(cancel).ConfigureAwait(false);
                return Current != null;
            }

            public ValueTask DisposeAsync()
            {
                request.Dispose();
                return default(ValueTask);
            }
        }
#endif

        private CompletionUpdate Read()
        {
            var update = ready.Dequeue();
            text.Append(update.Content);
            return update;
        }

        private void Ask(byte[] command)
        {
            try
            {
                Take(Json.Parse(Native.foredraft_poll(engine.Open(), command).Take()));
            }
            catch (ObjectDisposedException)
            {
                Fail(new ForedraftException("the engine was disposed", "invalid_engine", 400));
            }
        }

        private void Fail(ForedraftException error)
        {
            failure = error;
            hasEnded = true;
        }

        /// <summary>Takes the answer of a poll.</summary>
        private void Take(Json answer)
        {
            if (!answer["success"].Boolean) Fail(ForedraftException.Of(answer));
            foreach (var update in answer["completion_updates"].Items) Add(update);
            if (answer["finished"].Boolean) hasEnded = true;
        }

        private void Add(Json update)
        {
            if (!update["stop"].Boolean)
            {
                ready.Enqueue(new CompletionUpdate(update));
                return;
            }
            var success = update["success"];
            if (success.Kind == JsonKind.Boolean && !success.Boolean) failure = ForedraftException.Of(update);
            // The last update can have text that was not sent yet.
            if (update["content"].Text != "") ready.Enqueue(new CompletionUpdate(update));
            var place = answers.FindIndex(other => other["index"].Integer > update["index"].Integer);
            answers.Insert(place < 0 ? answers.Count : place, update);
        }

        private void ThrowFailure()
        {
            if (failure != null) throw failure;
        }
    }
}
