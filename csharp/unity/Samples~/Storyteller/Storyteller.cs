using System.IO;
using Foredraft;
using UnityEngine;

/// <summary>Shows a completion while it is generated. Put it on an object of a scene, and a model into StreamingAssets.</summary>
public sealed class Storyteller : MonoBehaviour
{
    [SerializeField] private string model = "stories-target.gguf";
    [SerializeField] private string prompt = "Once upon a time";
    [SerializeField] private int tokens = 60;
    /// <summary>A picture to tell about, RGB24 or RGBA32 with Read/Write in its import settings, and the projector that the model sees it by.</summary>
    [SerializeField] private Texture2D picture = null;
    [SerializeField] private string mmproj = "stories-vision.gguf";

    private Engine engine;
    private Request request;
    private bool hasFailed;

    /// <summary>The text so far.</summary>
    public string Shown { get; private set; } = "";

    // ANCHOR: frame
    private void Start()
    {
        // The editor unloads scripts and loads them again; the engine of this name keeps its models.
        engine = Engine.Named("storyteller");
        if (engine.Status()["state"].Text == "ready") return;
        var load = new Json
        {
            ["model"] = Path.Combine(Application.streamingAssetsPath, model),
            // One core is left to the game.
            ["n_threads"] = Mathf.Max(1, SystemInfo.processorCount / 2 - 1),
        };
        if (picture != null) load["mmproj"] = Path.Combine(Application.streamingAssetsPath, mmproj);
        engine.BeginLoad(load);
    }

    private void Update()
    {
        if (hasFailed || request != null && request.Finished) return;
        try
        {
            if (request == null)
            {
                var status = engine.Status();
                if (status["state"].Text == "failed") throw new ForedraftException(status["error"].Text, status["code"].Text, 0);
                Shown = "loading: " + (int)(100 * status["progress"].Number) + "%";
                if (status["state"].Text != "ready") return;
                request = engine.Submit(picture == null ? new Json { ["prompt"] = prompt, ["n_predict"] = tokens } : Question());
            }
            request.Poll(); // never waits
            Shown = request.Text;
        }
        catch (ForedraftException exception)
        {
            hasFailed = true;
            Debug.LogException(exception);
        }
    }

    private Json Question()
    {
        // A texture begins at the bottom.
        var seen = Media.Picture(picture.GetPixelData<byte>(0).ToArray(), picture.width, picture.height, fromBottom: true);
        var question = new Json { ["type"] = "text", ["text"] = "What is in the picture?" };
        var messages = Json.Array(new Json { ["role"] = "user", ["content"] = Json.Array(seen, question) });
        return new Json { ["messages"] = messages, ["n_predict"] = tokens, ["temperature"] = 0 };
    }

    private void OnDestroy()
    {
        if (request != null) request.Dispose();
    }

    private void OnApplicationQuit()
    {
        engine.Dispose();
    }
    // ANCHOR_END: frame

    private void OnGUI()
    {
        GUILayout.Label(picture == null ? prompt + Shown : Shown);
    }
}
