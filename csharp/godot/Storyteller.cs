using Foredraft;
using Godot;

/// <summary>A label that shows a completion while it is generated.</summary>
public partial class Storyteller : Label
{
    [Export] public string Model = "res://stories-target.gguf";
    [Export] public string Prompt = "Once upon a time";
    [Export] public int Tokens = 60;

    private readonly Engine engine = new Engine();
    private Request request;
    private bool hasFailed;

    // ANCHOR: frame
    public override void _Ready()
    {
        engine.BeginLoad(new Json
        {
            // A file beside the exported game: the engine reads no .pck.
            ["model"] = ProjectSettings.GlobalizePath(Model),
            ["n_threads"] = Mathf.Max(1, OS.GetProcessorCount() / 2 - 1), // one core is left to the game
        });
    }

    public override void _Process(double delta)
    {
        if (hasFailed || request != null && request.Finished) return;
        try
        {
            if (request == null)
            {
                var status = engine.Status();
                if (status["state"].Text == "failed") throw new ForedraftException(status["error"].Text, status["code"].Text, 0);
                Text = "loading: " + (int)(100 * status["progress"].Number) + "%";
                if (status["state"].Text != "ready") return;
                request = engine.Submit(new Json { ["prompt"] = Prompt, ["n_predict"] = Tokens });
            }
            request.Poll(); // never waits
            Text = Prompt + request.Text;
        }
        catch (ForedraftException exception)
        {
            hasFailed = true;
            GD.PushError(exception.Message);
        }
    }

    public override void _ExitTree()
    {
        if (request != null) request.Dispose();
        engine.Dispose();
    }
    // ANCHOR_END: frame
}
