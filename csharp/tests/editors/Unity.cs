// Stands in for Unity: what the sample uses of it, and a loop that calls the component as Unity does.
using System;
using System.Reflection;
using System.Threading;

namespace UnityEngine
{
    [AttributeUsage(AttributeTargets.Field)]
    public sealed class SerializeField : Attribute { }

    public class MonoBehaviour { }

    public struct NativeArray<T>
    {
        public T[] Items;

        public T[] ToArray() { return (T[])Items.Clone(); }
    }

    /// <summary>A red square at the top of a white picture, from the bottom.</summary>
    public class Texture2D
    {
        public int width { get { return 48; } }
        public int height { get { return 48; } }

        public NativeArray<T> GetPixelData<T>(int mipLevel)
        {
            var pixels = new byte[3 * width * height];
            for (int at = 0; at < pixels.Length; at++)
            {
                int x = at / 3 % width, y = height - 1 - at / 3 / width;
                pixels[at] = (byte)(x >= 17 && x < 31 && y >= 2 && y < 16 && at % 3 > 0 ? 0 : 255);
            }
            return new NativeArray<T> { Items = (T[])(object)pixels };
        }
    }

    public static class Application
    {
        public static string streamingAssetsPath { get { return Environment.GetEnvironmentVariable("FOREDRAFT_MODELS"); } }
    }

    public static class SystemInfo
    {
        public static int processorCount { get { return Environment.ProcessorCount; } }
    }

    public static class Mathf
    {
        public static int Max(int a, int b) { return Math.Max(a, b); }
    }

    public static class Debug
    {
        public static void LogException(Exception exception) { throw exception; }
    }

    public static class GUILayout
    {
        public static void Label(string text) { Player.Label = text; }
    }

    public static class Player
    {
        public static string Label;

        /// <summary>With an argument, the component has a picture.</summary>
        public static void Main(string[] arguments)
        {
            var component = new Storyteller();
            if (arguments.Length > 0)
                typeof(Storyteller).GetField("picture", BindingFlags.Instance | BindingFlags.NonPublic).SetValue(component, new Texture2D());
            Action<string> call = message =>
                typeof(Storyteller).GetMethod(message, BindingFlags.Instance | BindingFlags.NonPublic).Invoke(component, null);
            call("Start");
            var request = typeof(Storyteller).GetField("request", BindingFlags.Instance | BindingFlags.NonPublic);
            Func<bool> hasEnded = () => request.GetValue(component) != null && ((Foredraft.Request)request.GetValue(component)).Finished;
            // The test's own limit ends a story that does not end.
            while (!hasEnded())
            {
                call("Update");
                call("OnGUI");
                Thread.Sleep(16);
            }
            call("OnDestroy");
            call("OnApplicationQuit");
            Console.WriteLine(Label);
        }
    }
}
