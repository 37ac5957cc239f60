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
