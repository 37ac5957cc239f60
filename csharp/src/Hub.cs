using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net;
using System.Runtime.InteropServices;
using System.Security.Cryptography;
using System.Text;
using System.Text.RegularExpressions;
using System.Threading;

namespace Foredraft
{
    /// <summary>Downloads models from Hugging Face's hub, or from an address, into the hub's own cache: see docs/models.md.</summary>
    public sealed class Hub
    {
        /// <summary>Attempts in a row that bring nothing before a download fails.</summary>
        private const int Attempts = 4;
        /// <summary>Milliseconds that a connection may be silent.</summary>
        private const int Silent = 60000;
        private const string Name = "[A-Za-z0-9_][A-Za-z0-9_.-]*";
        private static readonly Regex Reference = new Regex("^(?:hf:)?(" + Name + "/" + Name + @")(?:@([A-Za-z0-9_.-]+))?(?:/(.+\.gguf)|:([A-Za-z0-9_.-]+))?$");
        private static readonly Regex Address = new Regex("^(https?://[^/]+)/(" + Name + "/" + Name + ")/(?:resolve|blob)/([^/]+)/(.+)$");
        private static readonly Regex Split = new Regex(@"^(.+)-([0-9]{5})-of-([0-9]{5})\.gguf$", RegexOptions.IgnoreCase);
        private static readonly Regex Commit = new Regex("^[0-9a-f]{40}$");

        /// <summary>A file of a repository. Without a blob it is in the cache already.</summary>
        private sealed class HubFile
        {
            public string Path, Blob, Url;
            public long Size;
        }

        /// <summary>The server may answer later, or cannot be reached.</summary>
        private sealed class PassingException : Exception
        {
            public readonly bool IsAnswer;

            public PassingException(string message, bool isAnswer) : base(message) { IsAnswer = isAnswer; }
        }

        /// <summary>`owner/name`, or the host of an address.</summary>
        private string repository;
        private string revision, quant, path, endpoint, commit;
        private List<HubFile> files;
        private readonly Action<string, long, long> receive;
        private readonly CancellationToken cancel;

        private Hub(string reference, Action<string, long, long> receive, CancellationToken cancel)
        {
            this.receive = receive;
            this.cancel = cancel;
            Read(reference);
        }

        /// <summary>Whether a model is one to download: `hf:owner/name[:quant]`, or an address.</summary>
        public static bool IsRemote(string model)
        {
            return new[] { "hf:", "http://", "https://" }.Any(prefix => model.StartsWith(prefix, StringComparison.Ordinal));
        }

        /// <summary>
        /// Downloads `owner/name[@revision][:quant]`, `owner/name/file.gguf` or an address into Hugging Face's cache, or finds it there. Returns
        /// the paths as keys of a load: `model`, and of what lies beside it, those in `beside`: `model_draft` and `mmproj`, or null for both.
        /// Without a quantization it takes Q4_K_M, else Q8_0, else the first model, as llama.cpp does. `receive` is told each file's name, bytes
        /// and size. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are obeyed. Waits for it.
        /// </summary>
        public static Json Download(string reference, IEnumerable<string> beside = null, Action<string, long, long> receive = null,
            CancellationToken cancel = default(CancellationToken))
        {
            var hub = new Hub(reference, receive, cancel);
            hub.List();
            var chosen = hub.Chosen((beside ?? new[] { "model_draft", "mmproj" }).ToList());
            foreach (var file in chosen.SelectMany(pair => pair.Value)) hub.Fetch(file);
            if (hub.files.Any(file => file.Blob != null))
            {
                hub.Write(() =>
                {
                    Directory.CreateDirectory(Path.Combine(hub.Folder, "refs"));
                    File.WriteAllText(Path.Combine(hub.Folder, "refs", hub.revision), hub.commit);
                });
            }
            var paths = new Json();
            foreach (var pair in chosen) paths[pair.Key] = hub.InSnapshot(pair.Value[0].Path);
            return paths;
        }

        /// <summary>A configuration with paths in place of models to download. A drafter beside a target is its draft.</summary>
        internal static Json Downloaded(Json config, IProgress<double> progress, CancellationToken cancel)
        {
            if (!IsRemote(config["model"].Text) && !IsRemote(config["model_draft"].Text)) return config;
            Action<string, long, long> receive = (name, done, size) =>
            {
                if (progress != null) progress.Report((double)done / size);
            };
            var whole = Json.Parse(config.ToString());
            foreach (var key in new[] { "model", "model_draft" })
            {
                if (!IsRemote(whole[key].Text)) continue;
                var beside = key == "model" && whole["model_draft"].IsNull ? new[] { "model_draft" } : new string[0];
                var found = Download(whole[key].Text, beside, receive, cancel);
                whole[key] = found["model"];
                if (found["model_draft"].Text != "") whole["model_draft"] = found["model_draft"];
            }
            return whole;
        }

        private static string Variable(string name)
        {
            var value = Environment.GetEnvironmentVariable(name);
            return string.IsNullOrEmpty(value) ? null : value;
        }

        private static string Home
        {
            get
            {
                var cache = Variable("XDG_CACHE_HOME") ?? Path.Combine(Environment.GetFolderPath(Environment.SpecialFolder.UserProfile), ".cache");
                return Variable("HF_HOME") ?? Path.Combine(cache, "huggingface");
            }
        }

        private static string Cache
        {
            get { return Variable("HF_HUB_CACHE") ?? Variable("HUGGINGFACE_HUB_CACHE") ?? Path.Combine(Home, "hub"); }
        }

        private static string Server { get { return (Variable("HF_ENDPOINT") ?? "https://huggingface.co").TrimEnd('/'); } }

        private static string Token
        {
            get
            {
                var saved = Variable("HF_TOKEN_PATH") ?? Path.Combine(Home, "token");
                var token = Variable("HF_TOKEN") ?? Variable("HUGGING_FACE_HUB_TOKEN") ?? (File.Exists(saved) ? File.ReadAllText(saved) : "");
                return token.Trim();
            }
        }

        private string Folder { get { return Path.Combine(Cache, "models--" + repository.Replace("/", "--")); } }

        private string InSnapshot(string file) { return Path.Combine(Folder, "snapshots", commit, file.Replace('/', Path.DirectorySeparatorChar)); }

        /// <summary>What a reference names: a repository and what is meant of it, or an address.</summary>
        private void Read(string reference)
        {
            var address = Address.Match(reference.Split('?')[0]);
            var named = Reference.Match(reference);
            Uri uri;
            if (address.Success)
            {
                endpoint = address.Groups[1].Value;
                repository = address.Groups[2].Value;
                revision = address.Groups[3].Value;
                path = Uri.UnescapeDataString(address.Groups[4].Value);
            }
            else if (named.Success && !named.Groups[1].Value.Contains(".."))
            {
                endpoint = Server;
                repository = named.Groups[1].Value;
                revision = named.Groups[2].Success ? named.Groups[2].Value : "main";
                path = named.Groups[3].Success ? named.Groups[3].Value : null;
                quant = named.Groups[4].Success ? named.Groups[4].Value : null;
            }
            else if (Regex.IsMatch(reference, "^https?://[^/]+/.") && Uri.TryCreate(reference, UriKind.Absolute, out uri))
            {
                // A "commit" of its own for each address.
                endpoint = reference;
                repository = Regex.Replace(uri.Authority, "[^A-Za-z0-9.]", "-");
                revision = Sum(new MemoryStream(Encoding.UTF8.GetBytes(reference))).Substring(0, 40);
                path = uri.AbsolutePath.Substring(uri.AbsolutePath.LastIndexOf('/') + 1);
            }
            else
            {
                throw new ForedraftException("model: expected \"owner/name\", \"owner/name:Q4_K_M\", \"owner/name/file.gguf\" or an address, got \""
                    + reference + "\"", "invalid_request", 400);
            }
        }

        private static ForedraftException ModelError(string message) { return new ForedraftException(message, "model_error", 500); }

        private static ForedraftException NotFound(string message) { return new ForedraftException(message, "not_found", 404); }

        private static string Sum(Stream bytes)
        {
            using (var digest = SHA256.Create()) return BitConverter.ToString(digest.ComputeHash(bytes)).Replace("-", "").ToLowerInvariant();
        }

        private void Pause(int failures)
        {
            cancel.WaitHandle.WaitOne(100 << (2 * failures));
            cancel.ThrowIfCancellationRequested();
        }

        /// <summary>Requests an address, of a file from a byte on. Follows redirects itself, because the token goes to no other host.</summary>
        private HttpWebResponse Ask(string url, string method, long from)
        {
            for (var redirects = 0; redirects < 10; ++redirects)
            {
                cancel.ThrowIfCancellationRequested();
#if NETCOREAPP
#pragma warning disable SYSLIB0014
#endif
                var request = (HttpWebRequest)WebRequest.Create(url);
#if NETCOREAPP
#pragma warning restore SYSLIB0014
#endif
                request.Method = method;
                request.UserAgent = "foredraft";
                request.AllowAutoRedirect = false;
                request.KeepAlive = false;
                request.Timeout = request.ReadWriteTimeout = Silent;
                if (from > 0) request.AddRange(from);
                if (Token != "" && url.StartsWith(Server + "/", StringComparison.Ordinal)) request.Headers["Authorization"] = "Bearer " + Token;
                HttpWebResponse answer;
                try
                {
                    answer = (HttpWebResponse)request.GetResponse();
                }
                catch (WebException error)
                {
                    answer = error.Response as HttpWebResponse;
                    if (answer == null) throw new PassingException(error.Message, false);
                }
                var status = (int)answer.StatusCode;
                if (status < 300) return answer;
                var location = answer.Headers["Location"];
                answer.Close();
                if (status < 400 && location != null) url = new Uri(new Uri(url), location).AbsoluteUri;
                else Refuse(status);
            }
            throw ModelError(repository + ": " + endpoint + " redirects without end");
        }

        private void Refuse(int status)
        {
            var what = repository + ": " + new Uri(endpoint).Authority + " answered " + status.ToString(CultureInfo.InvariantCulture);
            if (status == 408 || status == 429 || status >= 500) throw new PassingException(what, true);
            if (status == 401 || status == 403)
                throw ModelError(what + ". It is private, gated or not there: HF_TOKEN gives a token of an account that has access.");
            throw NotFound(what + ": there is no such repository, revision or file");
        }

        /// <summary>Requests an address. A busy server is asked again.</summary>
        private HttpWebResponse AskPatiently(string url, string method)
        {
            for (var attempt = 1; ; ++attempt)
            {
                try
                {
                    return Ask(url, method, 0);
                }
                catch (PassingException error)
                {
                    if (!error.IsAnswer || attempt == Attempts) throw;
                }
                Pause(attempt);
            }
        }

        /// <summary>Finds a commit and its files: those of the hub, or without a connection those of the cache.</summary>
        private void List()
        {
            var why = "HF_HUB_OFFLINE is set";
            if (!new[] { "1", "ON", "YES", "TRUE" }.Contains((Variable("HF_HUB_OFFLINE") ?? "").ToUpperInvariant()))
            {
                try
                {
                    ListRemote();
                    return;
                }
                catch (PassingException error)
                {
                    why = endpoint + " cannot be reached: " + error.Message;
                }
            }
            var known = Path.Combine(Folder, "refs", revision);
            commit = File.Exists(known) ? File.ReadAllText(known).Trim() : revision;
            var snapshot = InSnapshot("").TrimEnd(Path.DirectorySeparatorChar) + Path.DirectorySeparatorChar;
            files = new List<HubFile>();
            if (Commit.IsMatch(commit) && Directory.Exists(snapshot))
            {
                var found = Directory.GetFiles(snapshot, "*.gguf", SearchOption.AllDirectories).Where(File.Exists);
                var names = found.Select(file => file.Substring(snapshot.Length).Replace('\\', '/')).OrderBy(name => name, StringComparer.Ordinal);
                files.AddRange(names.Select(name => new HubFile { Path = name }));
            }
            if (files.Count == 0) throw NotFound(repository + " is not in " + Cache + ", and " + why);
        }

        private void ListRemote()
        {
            files = new List<HubFile>();
            if (!repository.Contains("/"))
            {
                using (var head = AskPatiently(endpoint, "HEAD"))
                {
                    if (head.ContentLength < 0 || !IsSafe(path)) throw ModelError(endpoint + ": the server tells no size of a file");
                    var version = endpoint + " " + head.Headers["ETag"] + " " + head.ContentLength.ToString(CultureInfo.InvariantCulture);
                    var blob = Sum(new MemoryStream(Encoding.UTF8.GetBytes(version))).Substring(0, 40);
                    commit = revision;
                    files.Add(new HubFile { Path = path, Size = head.ContentLength, Blob = blob, Url = endpoint });
                }
                return;
            }
            string text;
            using (var answer = AskPatiently(endpoint + "/api/models/" + repository + "/revision/" + Uri.EscapeDataString(revision) + "?blobs=true", "GET"))
            using (var reader = new StreamReader(answer.GetResponseStream(), Encoding.UTF8)) text = reader.ReadToEnd();
            Json listing;
            try
            {
                listing = Json.Parse(text);
            }
            catch (FormatException)
            {
                listing = new Json();
            }
            commit = listing["sha"].Text;
            var isValid = Commit.IsMatch(commit) && listing["siblings"].Kind == JsonKind.Array;
            foreach (var entry in listing["siblings"].Items)
            {
                var file = entry["rfilename"].Text;
                var sum = entry["lfs"]["sha256"].Text;
                var blob = sum == "" ? entry["blobId"].Text : sum;
                isValid = isValid && Regex.IsMatch(blob, "^([0-9a-f]{40}|[0-9a-f]{64})$") && entry["size"].Kind == JsonKind.Number;
                if (!file.EndsWith(".gguf", StringComparison.Ordinal) || !IsSafe(file)) continue;
                var url = endpoint + "/" + repository + "/resolve/" + commit + "/" + string.Join("/", file.Split('/').Select(Uri.EscapeDataString));
                files.Add(new HubFile { Path = file, Size = entry["size"].Integer, Blob = blob, Url = url });
            }
            if (!isValid) throw ModelError(endpoint + " gave no list of the files of " + repository);
        }

        /// <summary>Whether a path stays inside its folder, on every system.</summary>
        private static bool IsSafe(string file)
        {
            return !Regex.IsMatch(file, @"[\\:\x00-\x1f]") && file.Split('/').All(part => part != "" && part != "." && part != "..");
        }

        /// <summary>The files that the reference means, by the key of a load: llama.cpp's choice.</summary>
        private List<KeyValuePair<string, List<HubFile>>> Chosen(List<string> keys)
        {
            var drafters = files.Where(file => Regex.IsMatch(file.Path, "(^|/)(mtp|eagle3|dflash|dspark)-[^/]*$")).ToList();
            var projectors = files.Where(file => file.Path.Contains("mmproj")).ToList();
            Func<HubFile, bool> isAside = file => drafters.Contains(file) || projectors.Contains(file);
            var models = files.Where(file => !isAside(file) && !file.Path.Contains("imatrix")
                && (!Split.IsMatch(file.Path) || Split.Match(file.Path).Groups[2].Value == "00001")).ToList();
            Func<string, HubFile> withQuant = wanted =>
                models.FirstOrDefault(file => Regex.IsMatch(file.Path, Regex.Escape(wanted) + "[.-]", RegexOptions.IgnoreCase));
            var found = path != null ? files.FirstOrDefault(file => file.Path == path)
                : quant != null ? withQuant(quant)
                : withQuant("Q4_K_M") ?? withQuant("Q8_0") ?? models.FirstOrDefault();
            if (found == null)
            {
                var names = string.Join(", ", models.Select(file => file.Path));
                throw NotFound(repository + ": no " + (path ?? quant ?? "GGUF file") + "; there is " + (names == "" ? "no GGUF file" : names));
            }
            var chosen = new List<KeyValuePair<string, List<HubFile>>> { new KeyValuePair<string, List<HubFile>>("model", Parts(found)) };
            foreach (var key in isAside(found) ? new List<string>() : keys)
            {
                // In the nearest folder, with the most similar quantization.
                var near = (key == "mmproj" ? projectors : drafters)
                    .Where(file => found.Path.StartsWith(file.Path.Substring(0, file.Path.LastIndexOf('/') + 1), StringComparison.Ordinal))
                    .OrderByDescending(file => file.Path.Count(letter => letter == '/')).ThenBy(file => Math.Abs(Bits(file.Path) - Bits(found.Path)));
                if (near.Any()) chosen.Add(new KeyValuePair<string, List<HubFile>>(key, Parts(near.First())));
            }
            return chosen;
        }

        /// <summary>4 of `name-Q4_K_M.gguf`.</summary>
        private static int Bits(string file)
        {
            var split = Split.Match(file);
            var name = split.Success ? split.Groups[1].Value : Path.GetFileNameWithoutExtension(file);
            var digits = Regex.Match(name, "[-.][A-Za-z_]*([0-9]{1,3})[A-Za-z0-9_]*$");
            return digits.Success ? int.Parse(digits.Groups[1].Value, CultureInfo.InvariantCulture) : 0;
        }

        /// <summary>All files of a model, the first one first.</summary>
        private List<HubFile> Parts(HubFile file)
        {
            var split = Split.Match(file.Path);
            if (!split.Success) return new List<HubFile> { file };
            var count = int.Parse(split.Groups[3].Value, CultureInfo.InvariantCulture);
            return Enumerable.Range(1, count).Select(i =>
            {
                var wanted = split.Groups[1].Value + "-" + i.ToString("00000", CultureInfo.InvariantCulture) + "-of-" + split.Groups[3].Value + ".gguf";
                var found = files.FirstOrDefault(other => other.Path == wanted);
                if (found == null) throw NotFound(file.Path + ": " + wanted + " is missing");
                return found;
            }).ToList();
        }

        /// <summary>Downloads a file, checks its sum and links it into the snapshot.</summary>
        private void Fetch(HubFile file)
        {
            var target = InSnapshot(file.Path);
            if (file.Blob == null || File.Exists(target)) return;
            var blob = Path.Combine(Folder, "blobs", file.Blob);
            var partial = blob + ".foredraft.incomplete";
            Write(() =>
            {
                Directory.CreateDirectory(Path.GetDirectoryName(blob));
                Directory.CreateDirectory(Path.GetDirectoryName(target));
            });
            if (!File.Exists(blob))
            {
                if (Receive(file, partial) != file.Blob && file.Blob.Length == 64)
                {
                    File.Delete(partial);
                    throw ModelError(file.Path + ": what " + file.Url + " sent has not the SHA-256 " + file.Blob + ", and was deleted");
                }
                Write(() => MoveUnlessThere(partial, blob));
            }
            var ups = string.Concat(Enumerable.Repeat("../", file.Path.Count(letter => letter == '/') + 2));
            if (!Link(ups + "blobs/" + file.Blob, target)) Write(() => MoveUnlessThere(blob, target));
        }

        /// <summary>Renames a file, if another process was not first.</summary>
        private static void MoveUnlessThere(string from, string to)
        {
            try
            {
                File.Move(from, to);
            }
            catch (IOException)
            {
                if (!File.Exists(to)) throw;
                File.Delete(from);
            }
        }

#if ENABLE_IL2CPP
        private static bool Link(string to, string at) { return false; }
#else
        [DllImport("libc")]
        private static extern int symlink(byte[] to, byte[] at);

        /// <summary>Makes a symbolic link. Where the system has none, the file is moved, as Hugging Face's own program does.</summary>
        private static bool Link(string to, string at)
        {
            try
            {
                return symlink(Native.Utf8(to), Native.Utf8(at)) == 0 || File.Exists(at);
            }
            catch (Exception error) when (error is DllNotFoundException || error is EntryPointNotFoundException)
            {
                return false;
            }
        }
#endif

        /// <summary>Completes a partial file, and returns its SHA-256. Processes that do so at once write the same bytes at the same places, each
        /// from an end of the file on. So they need no lock, and a file never has a gap.</summary>
        private string Receive(HubFile file, string partial)
        {
            FileStream opened = null;
            Write(() => opened = new FileStream(partial, FileMode.OpenOrCreate, FileAccess.ReadWrite, FileShare.ReadWrite | FileShare.Delete, 4096));
            using (var output = opened)
            {
                if (output.Length > file.Size) output.SetLength(0);
                var at = output.Length;
                for (var failures = 0; at < file.Size;)
                {
                    var before = at;
                    var why = "the connection was cut";
                    try
                    {
                        using (var answer = Ask(file.Url, "GET", at))
                        {
                            if (answer.StatusCode != HttpStatusCode.PartialContent) at = 0;
                            output.Seek(at, SeekOrigin.Begin);
                            Copy(answer.GetResponseStream(), output, file, ref at);
                        }
                    }
                    catch (PassingException error)
                    {
                        why = error.Message;
                    }
                    failures = at > before ? 0 : failures + 1;
                    if (failures == Attempts)
                    {
                        throw ModelError(file.Path + ": " + at.ToString(CultureInfo.InvariantCulture) + " of " + file.Size.ToString(CultureInfo.InvariantCulture)
                            + " bytes are there, then " + file.Url + " sent no more: " + why + ". The next attempt goes on from there.");
                    }
                    if (failures > 0) Pause(failures);
                }
                output.Seek(0, SeekOrigin.Begin);
                return Sum(output);
            }
        }

        /// <summary>Copies an answer up to its end or the file's.</summary>
        private void Copy(Stream body, Stream output, HubFile file, ref long at)
        {
            var block = new byte[1 << 18];
            while (at < file.Size)
            {
                int count;
                try
                {
                    count = body.Read(block, 0, (int)Math.Min(block.Length, file.Size - at));
                }
                catch (Exception error) when (error is IOException || error is WebException)
                {
                    throw new PassingException(error.Message, false);
                }
                if (count == 0) return;
                Write(() =>
                {
                    output.Write(block, 0, count);
                    output.Flush();
                });
                at += count;
                if (receive != null) receive(file.Path, at, file.Size);
                cancel.ThrowIfCancellationRequested();
            }
        }

        /// <summary>Does what writes into the cache: its failures name the folder.</summary>
        private void Write(Action action)
        {
            try
            {
                action();
            }
            catch (Exception error) when (error is IOException || error is UnauthorizedAccessException)
            {
                throw ModelError(Folder + " cannot be written: " + error.Message + " HF_HUB_CACHE names another folder for downloads.");
            }
        }
    }
}
