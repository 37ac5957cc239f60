// Stands in for Godot: what the sample uses of it, and a loop that calls the node as Godot does.
using System;
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
            var last = DateTime.UtcNow;
            for (var shown = ""; (DateTime.UtcNow - last).TotalSeconds < (shown.StartsWith("loading") ? 30 : 2); Thread.Sleep(16))
            {
                node._Process(1 / 60.0);
                if (node.Text != shown) last = DateTime.UtcNow;
                shown = node.Text;
            }
            node._ExitTree();
            Console.WriteLine(node.Text);
        }
    }
}
