using System;

namespace Foredraft
{
    /// <summary>An error that the library answered.</summary>
    public sealed class ForedraftException : Exception
    {
        public ForedraftException(string message, string code, int status, string missingFile = null) : base(message)
        {
            Code = code;
            Status = status;
            MissingFile = missingFile;
        }

        /// <summary>One of the documented codes: "invalid_request", "not_found", ...</summary>
        public string Code { get; private set; }

        /// <summary>The matching number, as of HTTP: 400, 404, ...</summary>
        public int Status { get; private set; }

        /// <summary>The file or folder that does not exist; else null.</summary>
        public string MissingFile { get; private set; }

        /// <summary>The error of an answer or a status.</summary>
        internal static ForedraftException Of(Json answer)
        {
            var error = answer["error"].Text;
            var code = answer["code"].Text;
            var missing = answer["missing_file"];
            return new ForedraftException(error == "" ? answer.ToString() : error, code == "" ? "internal" : code,
                (int)answer["status"].Integer, missing.IsNull ? null : missing.Text);
        }
    }
}
