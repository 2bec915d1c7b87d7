package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/regular"
)

// composeImage is the image of the service that a command of compose runs: as its file
// says, or as compose calls an image that it builds itself.
func (p Plan) composeImage(e environ) (string, error) {
	files, dir, err := p.composeFiles(e)
	if err != nil {
		return "", err
	}
	type service struct {
		Image   string
		Build   any
		Extends any
	}
	var svc service
	name := ""
	for _, file := range files {
		b, err := readSmall(file)
		if err != nil {
			return "", fmt.Errorf("the compose file: %w", err)
		}
		var doc struct {
			Name     string
			Services map[string]service
		}
		if err := yaml.Unmarshal(b, &doc); err != nil {
			return "", fmt.Errorf("the compose file %s: %w", file, &cleanError{err})
		}
		if doc.Name != "" {
			name = doc.Name
		}
		s := doc.Services[p.cmd.target]
		if s.Image != "" {
			svc.Image = s.Image
		}
		if s.Build != nil {
			svc.Build = s.Build
		}
		if s.Extends != nil {
			svc.Extends = s.Extends
		}
	}
	dotenv := readDotEnv(filepath.Join(dir, ".env"))
	lookup := func(name string) (string, bool) {
		if v := e.get(name); v != "" {
			return v, true
		}
		v, ok := dotenv[name]
		return v, ok
	}
	switch {
	case svc.Image != "":
		image, ok := interpolate(svc.Image, lookup)
		if !ok {
			return "", fmt.Errorf("the image of the service %s is %q in the compose file, with a variable that is not set", brief(p.cmd.target), brief(svc.Image))
		}
		return image, nil
	case svc.Build != nil:
		if p.project != "" {
			name = p.project
		}
		if name == "" {
			name = filepath.Base(dir)
		}
		return strings.TrimLeft(notProject.ReplaceAllString(strings.ToLower(name), ""), "_-") + "-" + p.cmd.target, nil
	}
	return "", fmt.Errorf("the compose file names no image for the service %s", brief(p.cmd.target))
}

var notProject = lazyre.New(`[^a-z0-9_-]`)

// composeFiles are the files that a command of compose reads, and its project's folder.
func (p Plan) composeFiles(e environ) (files []string, dir string, err error) {
	abs := func(path string) (string, error) {
		if filepath.IsAbs(path) {
			return path, nil
		}
		if p.cmd.dir == "" {
			return "", errors.New("the folder that compose starts in is not known")
		}
		return filepath.Join(p.cmd.dir, path), nil
	}
	var given []string
	for _, o := range p.cmd.composeOptions {
		if o.name == "-f" || o.name == "--file" {
			given = append(given, o.value)
		}
	}
	if list := e.get("COMPOSE_FILE"); len(given) == 0 && list != "" {
		given = filepath.SplitList(list)
	}
	for _, path := range given {
		file, err := abs(path)
		if err != nil {
			return nil, "", err
		}
		files = append(files, file)
	}
	folder, told := last(p.cmd.composeOptions, "--project-directory", "--workdir")
	switch {
	case told:
		if dir, err = abs(folder); err != nil {
			return nil, "", err
		}
	case len(files) > 0:
		dir = filepath.Dir(files[0])
	default:
		dir = p.cmd.dir
	}
	for at := dir; len(files) == 0 && filepath.IsAbs(at); at = filepath.Dir(at) {
		if file := firstFile(at, prefixes().Compose.Files); file != "" {
			files, dir = []string{file}, at
			if over := firstFile(at, prefixes().Compose.Overrides); over != "" {
				files = append(files, over)
			}
		}
		if at == "/" || told {
			break
		}
	}
	if len(files) == 0 {
		return nil, "", errors.New("no compose file was found")
	}
	return files, dir, nil
}

// firstFile is the first of these regular files that is in the folder, "" where none is.
func firstFile(dir string, names []string) string {
	for _, name := range names {
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() {
			return file
		}
	}
	return ""
}

// readSmall reads a regular file of at most 1 MiB.
func readSmall(path string) ([]byte, error) {
	f, st, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size() > 1<<20 {
		return nil, fmt.Errorf("%s is too large for what it should be", path)
	}
	return io.ReadAll(io.LimitReader(f, 1<<20))
}

// readDotEnv reads the NAME=VALUE lines of a project's .env.
func readDotEnv(path string) map[string]string {
	b, err := readSmall(path)
	if err != nil {
		return nil
	}
	m := map[string]string{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			m[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return m
}

// variable is $NAME or ${NAME}, with a default behind - or :-, as compose has them.
var variable = lazyre.New(`\$(?:\$|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-?+])([^{}$]*))?\})`)

// interpolate puts values in; ok is false where one is not known.
func interpolate(text string, lookup func(string) (string, bool)) (out string, ok bool) {
	ok = true
	out = variable.ReplaceAllStringFunc(text, func(s string) string {
		if s == "$$" {
			return "$"
		}
		m := variable.FindStringSubmatch(s)
		value, set := lookup(m[1] + m[2])
		switch {
		case set && value != "" && !strings.HasSuffix(m[3], "+"), set && m[3] == "-":
			return value
		case strings.HasSuffix(m[3], "-"):
			return m[4]
		}
		ok = false
		return s
	})
	return out, ok && !strings.Contains(out, "${")
}
