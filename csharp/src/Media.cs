using System;

namespace Foredraft
{
    /// <summary>Pictures and sounds as parts of a message's content, for a model that is loaded with its projector (<c>mmproj</c>).</summary>
    public static class Media
    {
        /// <summary>
        /// A picture of pixels: red, green and blue bytes, or with a fourth one, row by row from the top. Unity's textures begin at the bottom.
        /// </summary>
        public static Json Picture(byte[] pixels, int width, int height, bool fromBottom = false)
        {
            if (pixels == null) throw new ArgumentNullException("pixels");
            if (height > 0 && fromBottom)
            {
                var turned = new byte[pixels.Length];
                int row = pixels.Length / height;
                for (int y = 0; y < height; y++) Buffer.BlockCopy(pixels, y * row, turned, (height - 1 - y) * row, row);
                pixels = turned;
            }
            var format = pixels.LongLength == 4L * width * height ? "rgba8" : "rgb8";
            return new Json { ["type"] = "image", ["width"] = width, ["height"] = height, ["format"] = format, ["base64"] = Convert.ToBase64String(pixels) };
        }

        /// <summary>A picture in the bytes of a PNG, JPEG, GIF or BMP file.</summary>
        public static Json Picture(byte[] file)
        {
            return new Json { ["type"] = "image_url", ["image_url"] = new Json { ["url"] = "data:;base64," + Convert.ToBase64String(file) } };
        }

        /// <summary>A sound in the bytes of a WAV, MP3 or FLAC file.</summary>
        public static Json Sound(byte[] file)
        {
            return new Json { ["type"] = "input_audio", ["input_audio"] = new Json { ["data"] = Convert.ToBase64String(file) } };
        }

        /// <summary>A sound of samples from -1 to 1, such as those of Unity's AudioClip.GetData: those of all channels, then the next ones.</summary>
        public static Json Sound(float[] samples, int rate, int channels = 1)
        {
            if (samples == null) throw new ArgumentNullException("samples");
            const int Head = 44, Float = 3;
            var file = new byte[Head + sizeof(float) * samples.Length];
            int at = 0;
            Action<string> word = text => { foreach (var letter in text) file[at++] = (byte)letter; };
            Action<int, int> number = (value, bytes) => { for (; bytes > 0; bytes--, value >>= 8) file[at++] = (byte)value; };
            int block = sizeof(float) * channels;
            word("RIFF");
            number(file.Length - 8, 4);
            word("WAVEfmt ");
            number(16, 4);
            number(Float, 2);
            number(channels, 2);
            number(rate, 4);
            number(rate * block, 4);
            number(block, 2);
            number(8 * sizeof(float), 2);
            word("data");
            number(file.Length - Head, 4);
            Buffer.BlockCopy(samples, 0, file, Head, file.Length - Head);
            return Sound(file);
        }
    }
}
