using System;
using Foredraft;

/// <summary>Asks a model about a picture: picture.exe MODEL.gguf MMPROJ.gguf</summary>
public static class Picture
{
    const int Width = 64, Height = 48;

    /// <summary>A red square on white.</summary>
    static byte[] Draw()
    {
        var pixels = new byte[Width * Height * 3];
        for (int at = 0; at < pixels.Length; at++)
        {
            int x = at / 3 % Width, y = at / 3 / Width;
            bool isSquare = x >= 24 && x < 40 && y >= 16 && y < 32;
            pixels[at] = (byte)(isSquare && at % 3 > 0 ? 0 : 255);
        }
        return pixels;
    }

    public static void Main(string[] arguments)
    {
        // ANCHOR: picture
        using (var engine = new Engine())
        {
            engine.Load(new Json { ["model"] = arguments[0], ["mmproj"] = arguments[1] });
            var question = new Json { ["type"] = "text", ["text"] = "What is in the picture?" };
            var messages = Json.Array(new Json { ["role"] = "user", ["content"] = Json.Array(Media.Picture(Draw(), Width, Height), question) });
            Console.WriteLine(engine.Complete(new Json { ["messages"] = messages, ["n_predict"] = 30, ["temperature"] = 0 })["content"].Text);
        }
        // ANCHOR_END: picture
    }
}
