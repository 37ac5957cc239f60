using System;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;

namespace Foredraft.Tests
{
    /// <summary>Downloads, from the server of the repository's tests/hub, whose folder FOREDRAFT_HUB names.</summary>
    public static class HubTests
    {
        /// <summary>With this argument the tests are the program that tests/hub/check.py runs.</summary>
        public const string Get = "--get";

        private static readonly string Folder = Environment.GetEnvironmentVariable("FOREDRAFT_HUB");

        /// <summary>Downloads a model as `foredraft-get` does.</summary>
        public static int Run(string[] arguments)
        {
            try
            {
                var beside = arguments.Contains("--only-model") ? new string[0] : null;
                Console.WriteLine(Hub.Download(arguments.Last(), beside));
                return 0;
            }
            catch (ForedraftException exception)
            {
                Console.Error.WriteLine(exception.Message);
                return 1;
            }
        }

        private static Process Python(string arguments)
        {
            var start = new ProcessStartInfo("python3", arguments) { UseShellExecute = false, RedirectStandardInput = true, RedirectStandardOutput = true };
            return Process.Start(start);
        }

        private static void WithServer(Action test)
        {
            var home = Path.Combine(Path.GetTempPath(), "hub-" + Guid.NewGuid());
            using (var server = Python("\"" + Path.Combine(Folder, "server.py") + "\" \"" + Path.GetDirectoryName(Runner.Model("target")) + "\""))
            {
                Environment.SetEnvironmentVariable("HF_ENDPOINT", server.StandardOutput.ReadLine());
                Environment.SetEnvironmentVariable("HF_HOME", home);
                try
                {
                    test();
                }
                finally
                {
                    Environment.SetEnvironmentVariable("HF_ENDPOINT", null);
                    Environment.SetEnvironmentVariable("HF_HOME", null);
                    server.StandardInput.Close();
                    server.WaitForExit();
                    if (Directory.Exists(home)) Directory.Delete(home, true);
                }
            }
        }

        [Test]
        public static void DownloadsSurviveFaults()
        {
            var tests = typeof(HubTests).Assembly.Location;
            var program = tests.EndsWith(".exe", StringComparison.Ordinal) ? "mono" : "dotnet";
            using (var check = Python("\"" + Path.Combine(Folder, "check.py") + "\" " + program + " \"" + tests + "\" " + Get))
            {
                var output = check.StandardOutput.ReadToEnd();
                check.WaitForExit();
                Check.That(check.ExitCode == 0, output);
            }
        }

        [Test]
        public static void AnEngineDownloadsItsModels()
        {
            WithServer(() =>
            {
                var config = new Json { ["model"] = "hf:stories/target", ["model_draft"] = "hf:stories/draft", ["n_ctx"] = 512, ["log_level"] = "none" };
                var story = new Json { ["prompt"] = "Once", ["n_predict"] = 20, ["temperature"] = 0 };
                using (Engine one = new Engine(), other = new Engine(), local = new Engine())
                {
                    one.Load(config);
                    Check.That(one.Status()["model"].Text.StartsWith(Environment.GetEnvironmentVariable("HF_HOME"), StringComparison.Ordinal), one.Status());
                    other.LoadAsync(config).Wait();
                    local.Load(new Json { ["model"] = Runner.Model("target"), ["n_ctx"] = 512, ["log_level"] = "none" });
                    var text = local.Complete(story)["content"].Text;
                    Check.Equal(text, one.Complete(story)["content"].Text);
                    Check.Equal(text, other.Complete(story)["content"].Text);
                    var error = Check.Throws<ForedraftException>(() => one.Load(new Json { ["model"] = "hf:tiny/model:Q5_K_M" }));
                    Check.That(error.Code == "not_found" && error.Message.Contains("tiny-Q8_0.gguf"), error);
                }
            });
        }

        [Test]
        public static void ATokenEndsADownload()
        {
            WithServer(() =>
            {
                using (var source = new CancellationTokenSource())
                {
                    Check.Throws<OperationCanceledException>(() => Hub.Download("slow/model", null, (name, done, size) => source.Cancel(), source.Token));
                }
            });
        }
    }
}
