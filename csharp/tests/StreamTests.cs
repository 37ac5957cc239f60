#if NETCOREAPP
using System.Threading;
using System.Threading.Tasks;

namespace Foredraft.Tests
{
    /// <summary>Tests of asynchronous streams, which need C# 8. Mono's compiler lacks it.</summary>
    public static class StreamTests
    {
        private static async Task<string> Streamed(Engine engine, Json request, int atMost)
        {
            var text = "";
            await foreach (var update in engine.Submit(request))
            {
                text += update.Content;
                if (--atMost == 0) break;
            }
            return text;
        }

        [Test]
        public static void updates_are_an_async_stream()
        {
            using var engine = new Engine();
            engine.Load(new Json { ["model"] = Runner.Model("target"), ["n_threads"] = 1, ["log_level"] = "none" });
            var request = new Json { ["prompt"] = "Once upon a time", ["n_predict"] = 20, ["temperature"] = 0 };
            Check.Equal(engine.Complete(request)["content"].Text, Streamed(engine, request, 100).Result);
            // Leaving the loop cancels.
            Streamed(engine, Json.Parse("{\"prompt\": \"Once\", \"ignore_eos\": true}"), 2).Wait();
            for (var i = 0; engine.Status()["slots"][0]["state"].Text != "idle"; ++i)
            {
                Check.That(i < 60000, engine.Status());
                Thread.Sleep(10);
            }
        }

        public sealed class Person
        {
            public string name { get; set; }
            public int age { get; set; }
        }

        [Test]
        public static void json_converts_to_and_from_other_types()
        {
            var person = Json.Parse("{\"name\":\"Zo\\u00eb\",\"age\":7}").As<Person>();
            Check.Equal("Zoë 7", person.name + " " + person.age);
            Check.Equal(7L, Json.From(person)["age"].Integer);
        }
    }
}
#endif
