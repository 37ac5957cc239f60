using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Reflection;

namespace Foredraft.Tests
{
    /// <summary>A test: a static method without arguments.</summary>
    [AttributeUsage(AttributeTargets.Method)]
    public sealed class TestAttribute : Attribute { }

    /// <summary>The assertions of tests.</summary>
    public static class Check
    {
        public static void That(bool condition, object shown)
        {
            if (!condition) throw new Exception("not so: " + shown);
        }

        public static void Equal<T>(T expected, T found)
        {
            if (!EqualityComparer<T>.Default.Equals(expected, found)) throw new Exception("expected " + expected + ", got " + found);
        }

        public static T Throws<T>(Action action) where T : Exception
        {
            try
            {
                action();
            }
            catch (T exception)
            {
                return exception;
            }
            throw new Exception("no " + typeof(T).Name);
        }
    }

    /// <summary>Runs the tests whose names contain an argument, or all. FOREDRAFT_MODELS names the folder of the shipped models.</summary>
    public static class Runner
    {
        public static string Model(string name)
        {
            return Path.Combine(Environment.GetEnvironmentVariable("FOREDRAFT_MODELS") ?? "models", "stories-" + name + ".gguf");
        }

#if !NETCOREAPP
        /// <summary>The argument with which this is the program of a test of the end.</summary>
        public const string EndsWhileAnotherDomainRuns = "--ends-while-another-domain-runs";
#endif

        public static int Main(string[] arguments)
        {
#if !NETCOREAPP
            if (arguments.Contains(EndsWhileAnotherDomainRuns))
            {
                DomainTests.EndWhileAnotherDomainRuns();
                return 0;
            }
#endif
            if (arguments.Contains(HubTests.Get)) return HubTests.Run(arguments);
            int passed = 0, failed = 0;
            var methods = typeof(Runner).Assembly.GetTypes().SelectMany(type => type.GetMethods(BindingFlags.Public | BindingFlags.Static));
            foreach (var method in methods.Where(method => method.IsDefined(typeof(TestAttribute), false)).OrderBy(method => method.Name))
            {
                if (arguments.Length > 0 && !arguments.Any(part => method.Name.Contains(part))) continue;
                var watch = Stopwatch.StartNew();
                try
                {
                    method.Invoke(null, null);
                    ++passed;
                    Console.WriteLine("ok {0} ({1:0.0} s)", method.Name, watch.Elapsed.TotalSeconds);
                }
                catch (TargetInvocationException exception)
                {
                    ++failed;
                    Console.WriteLine("FAILED {0}: {1}", method.Name, exception.InnerException);
                }
            }
            Console.WriteLine("{0} passed, {1} failed", passed, failed);
            return failed == 0 && passed > 0 ? 0 : 1;
        }
    }
}
