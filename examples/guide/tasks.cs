using System;
using System.Threading;
using System.Threading.Tasks;
using Foredraft;

public static class Tasks
{
    // ANCHOR: tasks
    public static async Task Run()
    {
        using (var engine = new Engine())
        {
            await engine.LoadAsync(new Json { ["model"] = "models/stories-target.gguf" });
            var request = engine.Submit(new Json { ["prompt"] = "Once upon a time", ["n_predict"] = 60, ["seed"] = 7 });
            for (var update = await request.NextAsync(); update != null; update = await request.NextAsync())
            {
                Console.Write(update.Content);
            }
            Console.WriteLine("\n{0}", request.Answer["stop_type"].Text);

            using (var impatient = new CancellationTokenSource(TimeSpan.FromMilliseconds(200)))
            {
                try
                {
                    await engine.CompleteAsync(new Json { ["prompt"] = "Once", ["ignore_eos"] = true }, impatient.Token);
                }
                catch (OperationCanceledException)
                {
                    Console.WriteLine("cancelled");
                }
            }
            try
            {
                engine.Complete(new Json { ["prompt"] = "Once", ["top_p"] = 1.5 });
            }
            catch (ForedraftException error)
            {
                Console.WriteLine("{0}: {1}", error.Code, error.Message);
            }
        }
    }
    // ANCHOR_END: tasks

    public static void Main() { Run().Wait(); }
}
