// ANCHOR: hello
using System;
using Foredraft;

public static class Hello
{
    public static void Main()
    {
        using (var engine = new Engine())
        {
            engine.Load(new Json { ["model"] = "models/stories-target.gguf", ["model_draft"] = "models/stories-draft.gguf" });
            var messages = Json.Array(new Json { ["role"] = "user", ["content"] = "Tell me a story about a fox." });
            var request = engine.Submit(new Json { ["messages"] = messages, ["n_predict"] = 60, ["seed"] = 7 });
            foreach (var update in request) Console.Write(update.Content);
        }
    }
}
// ANCHOR_END: hello
