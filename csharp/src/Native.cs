using System;
using System.Runtime.InteropServices;
using System.Text;
using Microsoft.Win32.SafeHandles;

namespace Foredraft
{
    /// <summary>The functions of foredraft.h, which says what each does. Engines are numbers of pointer size; requests are UTF-8 with a NUL.</summary>
    public static class Native
    {
#if UNITY_IOS && !UNITY_EDITOR
        private const string Library = "__Internal";
#else
        private const string Library = "foredraft";
#endif
        private const CallingConvention C = CallingConvention.Cdecl;

        /// <summary>Receives log lines. Calls come from any thread.</summary>
        [UnmanagedFunctionPointer(C)]
        public delegate void LogCallback(int level, IntPtr text, IntPtr user);

        /// <summary>Receives the id of a request that has an update or has finished, on the engine's thread.</summary>
        [UnmanagedFunctionPointer(C)]
        public delegate void UpdateCallback(ulong id, IntPtr user);

        /// <summary>Changes the logits of a position of a request, on the engine's thread.</summary>
        [UnmanagedFunctionPointer(C)]
        public delegate void LogitsCallback(ulong id, IntPtr logits, int vocabularySize, IntPtr tokens, int tokenCount, IntPtr user);

        [DllImport(Library, CallingConvention = C)] public static extern IntPtr foredraft_engine_new();
        [DllImport(Library, CallingConvention = C)] public static extern void foredraft_engine_free(IntPtr engine);
        [DllImport(Library, CallingConvention = C)] public static extern int foredraft_load(IntPtr engine, byte[] config);
        [DllImport(Library, CallingConvention = C)] public static extern void foredraft_load_async(IntPtr engine, byte[] config);
        [DllImport(Library, CallingConvention = C)] public static extern void foredraft_unload(IntPtr engine);
        [DllImport(Library, CallingConvention = C)] public static extern int foredraft_pause(IntPtr engine);
        [DllImport(Library, CallingConvention = C)] public static extern int foredraft_resume(IntPtr engine);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_status(IntPtr engine);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_devices();
        [DllImport(Library, CallingConvention = C)] public static extern IntPtr foredraft_version();
        [DllImport(Library, CallingConvention = C)] public static extern uint foredraft_abi_version();
        [DllImport(Library, CallingConvention = C)] public static extern void foredraft_string_free(IntPtr text);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_complete(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_submit(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_poll(IntPtr engine, byte[] command);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_cancel(IntPtr engine, byte[] command);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_tokenize(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_detokenize(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_model_info(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_apply_template(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_embed(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_decide(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_prepare(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_rerank(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_session_save(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_session_load(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_session_erase(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_conversation(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_lookup_cache(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_lookup_create(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_lookup_merge(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern NativeString foredraft_lookup_stats(IntPtr engine, byte[] request);
        [DllImport(Library, CallingConvention = C)] public static extern void foredraft_set_log_callback(LogCallback callback, IntPtr user);
        [DllImport(Library, CallingConvention = C)] public static extern void foredraft_set_update_callback(IntPtr engine, UpdateCallback callback, IntPtr user);
        [DllImport(Library, CallingConvention = C)] public static extern void foredraft_set_logits_callback(IntPtr engine, LogitsCallback callback, IntPtr user);

        /// <summary>The version of foredraft.h that these declarations follow.</summary>
        public const uint AbiVersion = 1;

        /// <summary>A text as the functions take it. A NUL in it would end it early, and is an <see cref="ArgumentException"/>.</summary>
        public static byte[] Utf8(string text)
        {
            if (text == null) throw new ArgumentNullException("text");
            if (text.IndexOf('\0') >= 0) throw new ArgumentException("a request must have no NUL character", "text");
            var bytes = new byte[Encoding.UTF8.GetByteCount(text) + 1];
            Encoding.UTF8.GetBytes(text, 0, text.Length, bytes, 0);
            return bytes;
        }

        /// <summary>The text at an address, which still belongs to the library.</summary>
        public static string Text(IntPtr address)
        {
            if (address == IntPtr.Zero) return null;
            var length = 0;
            while (Marshal.ReadByte(address, length) != 0) ++length;
            var bytes = new byte[length];
            Marshal.Copy(address, bytes, 0, length);
            return Encoding.UTF8.GetString(bytes);
        }
    }

    /// <summary>A string that the library returned. It is released with this object, whatever happens in between.</summary>
    public sealed class NativeString : SafeHandleZeroOrMinusOneIsInvalid
    {
        /// <summary>For the marshaller, which fills it in.</summary>
        public NativeString() : base(true) { }

        protected override bool ReleaseHandle()
        {
            Native.foredraft_string_free(handle);
            return true;
        }

        /// <summary>Copies the text, and releases the string.</summary>
        public string Take()
        {
            using (this) return Native.Text(handle) ?? "{\"success\": false, \"status\": 503, \"error\": \"no memory\", \"code\": \"resource_exhausted\"}";
        }
    }

    /// <summary>Marks static methods that C calls, for which IL2CPP makes entry points. (It knows the attribute by its name.)</summary>
    [AttributeUsage(AttributeTargets.Method)]
    internal sealed class MonoPInvokeCallbackAttribute : Attribute
    {
        public MonoPInvokeCallbackAttribute(Type type) { }
    }
}
