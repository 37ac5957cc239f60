// Stands in for Godot: what the sample uses of it, and a loop that calls the node as Godot does.
using System;
using System.Reflection;
using System.Threading;

namespace Godot
{
    [AttributeUsage(AttributeTargets.Field)]
    public sealed class ExportAttribute : Attribute { }

    public class Label
    {
        public string Text { get; set; }
        public virtual void _Ready() { }
        public virtual void _Process(double delta) { }
        public virtual void _ExitTree() { }
    }

    public static class ProjectSettings
    {
        public static string GlobalizePath(string path)
        {
            return path.Replace("res:/", Environment.GetEnvironmentVariable("FOREDRAFT_MODELS"));
        }
    }

    public static class OS
    {
        public static int GetProcessorCount() { return Environment.ProcessorCount; }
    }

    public static class Mathf
    {
        public static int Max(int a, int b) { return Math.Max(a, b); }
    }

    public static class GD
    {
        public static void PushError(string message) { throw new Exception(message); }
    }

    public static class Player
    {
        public static void Main()
        {
            var node = new Storyteller();
            node._Ready();
            var request = typeof(Storyteller).GetField("request", BindingFlags.Instance | BindingFlags.NonPublic);
            Func<bool> hasEnded = () => request.GetValue(node) != null && ((Foredraft.Request)request.GetValue(node)).Finished;
            // The test's own limit ends a story that does not end.
            while (!hasEnded())
            {
                node._Process(1 / 60.0);
                Thread.Sleep(16);
            }
            node._ExitTree();
            Console.WriteLine(node.Text);
        }
    }
}
