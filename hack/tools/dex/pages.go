package main

import (
	"os"
	"path/filepath"
)

// theme names a folder that Dex insists on and nobody asks for.
const theme = "plain"

// pages are the templates that Dex needs. They stand here, not in files, so that the program is one file; the fields
// are those of Dex's server/templates.go.
var pages = map[string]string{
	"password.html": `<!DOCTYPE html>
<title>Log in</title>
{{ if .Invalid }}<p>{{ .UsernamePrompt }} or password is wrong.</p>{{ end }}
<form method="post" action="{{ .PostURL }}">
<label>{{ .UsernamePrompt }} <input name="login" type="text" required value="{{ .Username }}"></label>
<label>Password <input name="password" type="password" required></label>
<button type="submit">Log in</button>
</form>
`,
	"login.html": `<!DOCTYPE html>
<title>Log in</title>
{{ range .Connectors }}<a href="{{ .URL }}">{{ .Name }}</a>{{ end }}
`,
	"approval.html": `<!DOCTYPE html>
<title>Grant access</title>
<form method="post">
<input type="hidden" name="req" value="{{ .AuthReqID }}"><input type="hidden" name="approval" value="approve">
<button type="submit">Let {{ .Client }} act for {{ .User }}</button>
</form>
`,
	"oob.html": `<!DOCTYPE html>
<title>Code</title>
<code>{{ .Code }}</code>
`,
	"error.html": `<!DOCTYPE html>
<title>{{ .ErrType }}</title>
<p>{{ .ErrMsg }}</p>
`,
}

// writePages makes the folder that Dex reads its pages from.
func writePages() (string, error) {
	folder, err := os.MkdirTemp("", "dex-")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"static", "templates", filepath.Join("themes", theme)} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o700); err != nil {
			return folder, err
		}
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(folder, "templates", name), []byte(text), 0o600); err != nil {
			return folder, err
		}
	}
	return folder, nil
}
