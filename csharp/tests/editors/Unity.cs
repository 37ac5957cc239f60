// Stands in for Unity: what the sample uses of it, and a loop that calls the component as Unity does.
using System;
using System.Reflection;
using System.Threading;

namespace UnityEngine
{
    [AttributeUsage(AttributeTargets.Field)]
    public sealed class SerializeField : Attribute { }

    public class MonoBehaviour { }

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

        public static void Main()
        {
            var component = new Storyteller();
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
