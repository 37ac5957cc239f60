using System;
using System.Collections.Generic;
using System.Globalization;
using System.Text;

namespace Foredraft
{
    /// <summary>The kinds of JSON values.</summary>
    public enum JsonKind { Null, Boolean, Number, String, Array, Object }

    /// <summary>
    /// A JSON value: a request that is built, or an answer that is read. A member that is not there is null, empty and 0, so that members
    /// of members can be asked for without checks. With the compile symbol FOREDRAFT_SYSTEM_TEXT_JSON it converts to and from the types of
    /// System.Text.Json; without it nothing else is needed.
    /// </summary>
    public sealed class Json
    {
        /// <summary>The value null.</summary>
        public static readonly Json Null = new Json(JsonKind.Null, "null");

        /// <summary>Lists and objects in each other that are read; more are a <see cref="FormatException"/>.</summary>
        private const int MaxDepth = 500;

        private static readonly Json[] NoItems = new Json[0];

        /// <summary>A string's text; a number's or a boolean's as JSON has it.</summary>
        private readonly string text;
        private readonly List<Json> items;
        /// <summary>The names of an object's members; their values are `items`.</summary>
        private readonly List<string> names;

        private Json(JsonKind kind, string text)
        {
            Kind = kind;
            this.text = text;
        }

        private Json(JsonKind kind)
        {
            Kind = kind;
            items = new List<Json>();
            if (kind == JsonKind.Object) names = new List<string>();
        }

        /// <summary>An empty object: <c>new Json { ["prompt"] = "Once upon a time", ["n_predict"] = 60 }</c>.</summary>
        public Json() : this(JsonKind.Object) { }

        /// <summary>An array.</summary>
        public static Json Array(params Json[] values) { return Array((IEnumerable<Json>)values); }

        /// <summary>An array.</summary>
        public static Json Array(IEnumerable<Json> values)
        {
            var array = new Json(JsonKind.Array);
            foreach (var value in values) array.items.Add(value ?? Null);
            return array;
        }

        public static implicit operator Json(string value) { return value == null ? Null : new Json(JsonKind.String, value); }
        public static implicit operator Json(bool value) { return new Json(JsonKind.Boolean, value ? "true" : "false"); }
        public static implicit operator Json(int value) { return (long)value; }
        public static implicit operator Json(long value) { return new Json(JsonKind.Number, value.ToString(CultureInfo.InvariantCulture)); }
        public static implicit operator Json(ulong value) { return new Json(JsonKind.Number, value.ToString(CultureInfo.InvariantCulture)); }

        public static implicit operator Json(double value)
        {
            if (double.IsNaN(value) || double.IsInfinity(value)) throw new ArgumentException("JSON has no number " + value, "value");
            return new Json(JsonKind.Number, value.ToString("R", CultureInfo.InvariantCulture));
        }

        public JsonKind Kind { get; private set; }

        public bool IsNull { get { return Kind == JsonKind.Null; } }

        /// <summary>A string; empty if it is none.</summary>
        public string Text { get { return Kind == JsonKind.String ? text : ""; } }

        /// <summary>A number; 0 if it is none.</summary>
        public double Number
        {
            get { return Kind == JsonKind.Number ? double.Parse(text, NumberStyles.Float, CultureInfo.InvariantCulture) : 0; }
        }

        /// <summary>A number without its fraction; 0 if it is none, or does not fit.</summary>
        public long Integer
        {
            get
            {
                long value;
                if (Kind != JsonKind.Number) return 0;
                if (long.TryParse(text, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out value)) return value;
                var number = Number;
                return number > -9e18 && number < 9e18 ? (long)number : 0;
            }
        }

        /// <summary>True for the value true, false for all others.</summary>
        public bool Boolean { get { return Kind == JsonKind.Boolean && text == "true"; } }

        /// <summary>The values of an array or an object; none of others.</summary>
        public IList<Json> Items { get { return items == null ? NoItems : (IList<Json>)items.AsReadOnly(); } }

        /// <summary>The names of an object's members, in the order of <see cref="Items"/>.</summary>
        public IList<string> Names { get { return names == null ? new string[0] : (IList<string>)names.AsReadOnly(); } }

        public int Count { get { return items == null ? 0 : items.Count; } }

        /// <summary>A member of an object; null if there is none. Only objects take members.</summary>
        public Json this[string name]
        {
            get
            {
                var at = names == null ? -1 : names.LastIndexOf(name);
                return at < 0 ? Null : items[at];
            }
            set
            {
                if (names == null) throw new InvalidOperationException("only an object has members, and this is " + Kind);
                var at = names.LastIndexOf(name);
                if (at >= 0)
                {
                    items[at] = value ?? Null;
                    return;
                }
                names.Add(name);
                items.Add(value ?? Null);
            }
        }

        /// <summary>An item of an array; null if there is none.</summary>
        public Json this[int index] { get { return index >= 0 && index < Count ? items[index] : Null; } }

        /// <summary>The value's JSON text.</summary>
        public override string ToString()
        {
            var to = new StringBuilder();
            Write(to);
            return to.ToString();
        }

        private void Write(StringBuilder to)
        {
            if (Kind == JsonKind.String)
            {
                Quote(to, text);
            }
            else if (items == null)
            {
                to.Append(text);
            }
            else
            {
                to.Append(names == null ? '[' : '{');
                for (var i = 0; i < items.Count; ++i)
                {
                    if (i > 0) to.Append(',');
                    if (names != null)
                    {
                        Quote(to, names[i]);
                        to.Append(':');
                    }
                    items[i].Write(to);
                }
                to.Append(names == null ? ']' : '}');
            }
        }

        private static void Quote(StringBuilder to, string text)
        {
            to.Append('"');
            for (var i = 0; i < text.Length; ++i)
            {
                var c = text[i];
                if (c == '"' || c == '\\')
                {
                    to.Append('\\').Append(c);
                }
                else if (char.IsHighSurrogate(c) && i + 1 < text.Length && char.IsLowSurrogate(text[i + 1]))
                {
                    to.Append(c).Append(text[++i]);
                }
                else if (c < ' ' || char.IsSurrogate(c))
                {
                    to.Append("\\u").Append(((int)c).ToString("x4", CultureInfo.InvariantCulture));
                }
                else
                {
                    to.Append(c);
                }
            }
            to.Append('"');
        }

        /// <summary>Reads a JSON text. Another text is a <see cref="FormatException"/> that names the character's place.</summary>
        public static Json Parse(string document)
        {
            if (document == null) throw new ArgumentNullException("document");
            var reader = new Reader(document);
            return reader.Document();
        }

#if FOREDRAFT_SYSTEM_TEXT_JSON
        /// <summary>The value as an object of another type.</summary>
        public T As<T>(System.Text.Json.JsonSerializerOptions options = null)
        {
            return System.Text.Json.JsonSerializer.Deserialize<T>(ToString(), options);
        }

        /// <summary>An object of another type as a value.</summary>
        public static Json From<T>(T value, System.Text.Json.JsonSerializerOptions options = null)
        {
            return Parse(System.Text.Json.JsonSerializer.Serialize(value, options));
        }
#endif

        private sealed class Reader
        {
            private readonly string from;
            private int at;
            private int depth;

            public Reader(string from) { this.from = from; }

            public Json Document()
            {
                var value = Value();
                Space();
                if (at < from.Length) throw Wrong();
                return value;
            }

            private FormatException Wrong() { return new FormatException("no JSON value at character " + at); }

            private void Space()
            {
                while (at < from.Length && (from[at] == ' ' || from[at] == '\n' || from[at] == '\r' || from[at] == '\t')) ++at;
            }

            /// <summary>The next character that is no space; NUL at the end.</summary>
            private char Next()
            {
                Space();
                return at < from.Length ? from[at] : '\0';
            }

            private void Expect(char c)
            {
                if (Next() != c) throw Wrong();
                ++at;
            }

            private Json Value()
            {
                var c = Next();
                if (c == '{' || c == '[') return Container(c == '{' ? JsonKind.Object : JsonKind.Array);
                if (c == '"') return String();
                if (c == '-' || c >= '0' && c <= '9') return Number();
                foreach (var word in new[] { "null", "true", "false" })
                {
                    if (string.CompareOrdinal(from, at, word, 0, word.Length) != 0) continue;
                    at += word.Length;
                    return c == 'n' ? Null : c == 't';
                }
                throw Wrong();
            }

            private Json Container(JsonKind kind)
            {
                var end = kind == JsonKind.Object ? '}' : ']';
                var value = new Json(kind);
                if (++depth > MaxDepth) throw Wrong();
                ++at;
                if (Next() != end)
                {
                    for (;;)
                    {
                        if (value.names != null)
                        {
                            if (Next() != '"') throw Wrong();
                            value.names.Add(String());
                            Expect(':');
                        }
                        value.items.Add(Value());
                        if (Next() != ',') break;
                        ++at;
                    }
                }
                Expect(end);
                --depth;
                return value;
            }

            private Json Number()
            {
                var begin = at;
                while (at < from.Length && (from[at] >= '0' && from[at] <= '9' || "+-.eE".IndexOf(from[at]) >= 0)) ++at;
                var number = from.Substring(begin, at - begin);
                double value;
                if (!double.TryParse(number, NumberStyles.Float, CultureInfo.InvariantCulture, out value))
                {
                    at = begin;
                    throw Wrong();
                }
                return new Json(JsonKind.Number, number);
            }

            private string String()
            {
                var begin = ++at;
                while (at < from.Length && from[at] != '"' && from[at] != '\\') ++at;
                var text = from.Substring(begin, at - begin);
                if (at < from.Length && from[at] == '"')
                {
                    ++at;
                    return text;
                }
                var built = new StringBuilder(text);
                while (at < from.Length && from[at] != '"') built.Append(from[at] == '\\' ? Escape() : from[at++]);
                if (at >= from.Length) throw Wrong();
                ++at;
                return built.ToString();
            }

            private char Escape()
            {
                var c = at + 1 < from.Length ? from[at + 1] : '\0';
                var known = "\"\\/bfnrt".IndexOf(c);
                if (known >= 0)
                {
                    at += 2;
                    return "\"\\/\b\f\n\r\t"[known];
                }
                ushort unit;
                if (c != 'u' || at + 6 > from.Length
                    || !ushort.TryParse(from.Substring(at + 2, 4), NumberStyles.AllowHexSpecifier, CultureInfo.InvariantCulture, out unit))
                {
                    throw Wrong();
                }
                at += 6;
                return (char)unit;
            }
        }
    }
}
