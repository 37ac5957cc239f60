using System;
using System.Linq;

namespace Foredraft.Tests
{
    public static class JsonTests
    {
        [Test]
        public static void json_is_read_as_it_is_written()
        {
            foreach (var text in new[] {
                "null", "true", "[]", "{}", "-1.5e+3", "18446744073709551615", "\"\"", "\"a\\\"\\\\ é € 🦀\"", "[1,[2,{\"a\":[]}],\"\\u0001\"]", "{\"a\":{\"b\":null},\"c\":false}",
            })
            {
                Check.Equal(text, Json.Parse(" " + text + "\r\n\t").ToString());
            }
            Check.Equal("\"/\b\f\n\r\té🦀\ud800", Json.Parse(@"""\""\/\b\f\n\r\t\u00e9\ud83e\udd80\ud800""").Text);
            Check.Equal("\"\\ud800 🦀\\u000a\"", ((Json)"\ud800 🦀\n").ToString());
        }

        [Test]
        public static void bytes_become_pictures_and_sounds()
        {
            var rows = new byte[] { 1, 2, 3, 4, 5, 6 };
            Check.Equal("{\"type\":\"image\",\"width\":1,\"height\":2,\"format\":\"rgb8\",\"base64\":\"AQIDBAUG\"}", Media.Picture(rows, 1, 2).ToString());
            Check.Equal("BAUGAQID", Media.Picture(rows, 1, 2, fromBottom: true)["base64"].Text);
            Check.Equal("rgba8", Media.Picture(new byte[8], 1, 2)["format"].Text);
            Check.Equal("data:;base64,AQIDBAUG", Media.Picture(rows)["image_url"]["url"].Text);
            Check.Equal("ZkxhQw==", Media.Sound(new byte[] { 0x66, 0x4c, 0x61, 0x43 })["input_audio"]["data"].Text);
            var tone = Media.Sound(new[] { 0f, 1f }, 16000)["input_audio"]["data"].Text;
            Check.Equal("UklGRiwAAABXQVZFZm10IBAAAAADAAEAgD4AAAD6AAAEACAAZGF0YQgAAAAAAAAAAACAPw==", tone);
        }

        [Test]
        public static void json_that_is_none_is_refused()
        {
            foreach (var text in new[] {
                "", " ", "nul", "tru", "[", "[1", "[1,", "[1,]", "[1 2]", "{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}", "{a:1}", "{1:1}", "\"", "\"a", "\"\\", "\"\\x\"",
                "\"\\u12\"", "\"\\u12g4\"", "1 2", "-", "1e", "]", "NaN", "\0",
            })
            {
                Check.Throws<FormatException>(() => Json.Parse(text));
            }
            // Without a limit, such nesting would exhaust the stack.
            Check.Throws<FormatException>(() => Json.Parse(new string('[', 1000000)));
            Check.Throws<ArgumentException>(() => new Json { ["a"] = double.NaN });
            Check.Throws<InvalidOperationException>(() => { ((Json)"text")["a"] = 1; });
            Check.Throws<InvalidOperationException>(() => { Json.Null["a"] = 1; });
        }

        [Test]
        public static void json_members_that_are_not_there_are_empty()
        {
            var json = Json.Parse("{\"a\": [1, \"two\", 3.5, true], \"a b\": {\"c\": 4}}");
            Check.That(json["no"]["such"][7]["key"].IsNull, json);
            Check.Equal("", json["a"].Text);
            Check.Equal(1L, json["a"][0].Integer);
            Check.Equal("two", json["a"][1].Text);
            Check.Equal(3.5, json["a"][2].Number);
            Check.Equal(3L, json["a"][2].Integer);
            Check.That(json["a"][3].Boolean && !json["a"][0].Boolean, json);
            Check.Equal(4L, json["a b"]["c"].Integer);
            Check.Equal("a,a b", string.Join(",", json.Names));
            Check.Equal(4, json["a"].Count);
            json["a"] = Json.Array(new[] { 1, 2 }.Select(number => (Json)number));
            Check.Equal("{\"a\":[1,2],\"a b\":{\"c\":4}}", json.ToString());
        }
    }
}
