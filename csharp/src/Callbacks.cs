using System;
using System.Collections.Generic;

namespace Foredraft
{
    /// <summary>The levels of log lines.</summary>
    public enum LogLevel { Debug = 1, Info = 2, Warning = 3, Error = 4 }

    /// <summary>
    /// Where the library's threads enter C#: three static methods, whose delegates live as long as this domain. Before the domain ends, the
    /// library forgets them.
    /// </summary>
    public static class Callbacks
    {
        internal static readonly Native.UpdateCallback Update = OnUpdate;
        internal static readonly Native.LogitsCallback Logits = OnLogits;
        private static readonly Native.LogCallback LogLine = OnLog;
        private static readonly DomainState Domain = new DomainState();

        static Callbacks()
        {
            AppDomain.CurrentDomain.DomainUnload += Domain.End;
            AppDomain.CurrentDomain.ProcessExit += Domain.End;
        }

        /// <summary>Gets the exceptions of the host's handlers, which must not reach the library.</summary>
        public static event Action<Exception> Failed;

        /// <summary>
        /// Takes the log lines of the library and of llama.cpp, which otherwise go to stderr; null restores that. Calls come from any
        /// thread. Not beside the default engine or a named one, whose threads outlive this domain: a domain could not be unloaded while
        /// a thread lives that has called into it.
        /// </summary>
        public static void SetLog(Action<LogLevel, string> handler)
        {
            Domain.SetLog(handler);
            Native.foredraft_set_log_callback(handler == null ? null : LogLine, IntPtr.Zero);
        }

        internal static void Add(IntPtr handle, Engine engine) { Domain.Add(handle, engine); }

        /// <summary>As <see cref="Add"/>, for an engine that outlives this domain.</summary>
        internal static void AddOutliving(IntPtr handle, Engine engine) { Domain.AddOutliving(handle, engine); }

        internal static void Remove(IntPtr handle, bool outlives) { Domain.Remove(handle, outlives); }

        [MonoPInvokeCallback(typeof(Native.LogitsCallback))]
        private static void OnLogits(ulong id, IntPtr logits, int vocabularySize, IntPtr tokens, int tokenCount, IntPtr user)
        {
            try
            {
                var engine = Domain.Find(user);
                if (engine != null) engine.OnLogits(id, logits, vocabularySize, tokens, tokenCount);
            }
            catch (Exception exception)
            {
                // No token is chosen then.
                using (Native.foredraft_cancel(user, Native.Utf8(new Json { ["id"] = id }.ToString()))) Report(exception);
            }
        }

        [MonoPInvokeCallback(typeof(Native.UpdateCallback))]
        private static void OnUpdate(ulong id, IntPtr user)
        {
            try
            {
                var engine = Domain.Find(user);
                if (engine != null) engine.OnUpdate(id);
            }
            catch (Exception exception)
            {
                Report(exception);
            }
        }

        [MonoPInvokeCallback(typeof(Native.LogCallback))]
        private static void OnLog(int level, IntPtr text, IntPtr user)
        {
            try
            {
                var handler = Domain.Log;
                if (handler != null) handler((LogLevel)level, Native.Text(text));
            }
            catch (Exception exception)
            {
                Report(exception);
            }
        }

        private static void Report(Exception exception)
        {
            try
            {
                var handlers = Failed;
                if (handlers != null) handlers(exception);
            }
            catch (Exception)
            {
                // The handler of failures has failed.
            }
        }

        /// <summary>
        /// The engines and the log handler of this domain. Nothing static, because Mono calls all domains' handlers of the end of the process
        /// in the first domain, where static variables are that domain's.
        /// </summary>
        private sealed class DomainState
        {
            private const string Excluded = "a log handler and an engine that outlives its domain exclude each other";

#if ENABLE_IL2CPP || NETCOREAPP
            private static readonly bool CanUnload = false;
#else
            /// <summary>Whether the program's domains can end before it does.</summary>
            private static readonly bool CanUnload = true;
#endif
            /// <summary>This domain's engines, by their handles. They do not live by it.</summary>
            private readonly Dictionary<IntPtr, WeakReference> engines = new Dictionary<IntPtr, WeakReference>();
            private volatile Action<LogLevel, string> log;
            /// <summary>The engines that this domain uses, and that outlive it.</summary>
            private int outliving;

            public Action<LogLevel, string> Log { get { return log; } }

            public void SetLog(Action<LogLevel, string> handler)
            {
                lock (engines)
                {
                    if (handler != null && outliving > 0 && CanUnload) throw new InvalidOperationException(Excluded);
                    log = handler;
                }
            }

            public void Add(IntPtr handle, Engine engine)
            {
                lock (engines) engines[handle] = new WeakReference(engine);
            }

            public void AddOutliving(IntPtr handle, Engine engine)
            {
                lock (engines)
                {
                    if (log != null && CanUnload) throw new InvalidOperationException(Excluded);
                    ++outliving;
                    engines[handle] = new WeakReference(engine);
                }
            }

            public void Remove(IntPtr handle, bool outlives)
            {
                lock (engines)
                {
                    engines.Remove(handle);
                    if (outlives) --outliving;
                }
            }

            public Engine Find(IntPtr handle)
            {
                WeakReference found;
                lock (engines) engines.TryGetValue(handle, out found);
                return found == null ? null : found.Target as Engine;
            }

            /// <summary>The domain ends: its code must not be called any more. Engines without a name end with it.</summary>
            public void End(object sender, EventArgs arguments)
            {
                List<WeakReference> all;
                lock (engines) all = new List<WeakReference>(engines.Values);
                foreach (var weak in all)
                {
                    var engine = weak.Target as Engine;
                    if (engine != null) engine.End();
                }
                if (log != null) Native.foredraft_set_log_callback(null, IntPtr.Zero);
            }
        }
    }
}
