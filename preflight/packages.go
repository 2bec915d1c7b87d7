package preflight

import (
	"os"
	"slices"
	"strings"
)

// Packages returns the versions of the packages of stack.yaml that an
// interpreter of this machine would import, by name, from the names of their
// metadata folders. Nothing is started and nothing imported. It is empty for an
// interpreter that cannot be judged from outside, such as a wrapper script.
func Packages(interp string) map[string]string {
	if interp == "" {
		return nil
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = ""
	}
	s, _ := loadStack()
	return packagesIn(root("/"), venueOf(root("/"), interp, os.Getenv, dir, ""), s.Packages)
}

func packagesIn(r tree, v venue, wanted []string) map[string]string {
	out := make(map[string]string)
	for _, site := range v.sites {
		for _, folder := range r.names(site) {
			name, version, ok := metadataName(folder)
			if !ok || !slices.Contains(wanted, name) {
				continue
			}
			// The first folder of sys.path wins, as it does for Python.
			if _, known := out[name]; !known {
				out[name] = version
			}
		}
	}
	return out
}

// metadataName takes name and version out of NAME-VERSION.dist-info, or out of
// NAME-VERSION[-pyX.Y].egg-info of older installers.
func metadataName(folder string) (name, version string, ok bool) {
	rest, ok := strings.CutSuffix(folder, ".dist-info")
	if !ok {
		if rest, ok = strings.CutSuffix(folder, ".egg-info"); !ok {
			return "", "", false
		}
		if i := strings.LastIndex(rest, "-py"); i >= 0 {
			rest = rest[:i]
		}
	}
	i := strings.LastIndexByte(rest, '-')
	if i <= 0 || i == len(rest)-1 {
		return "", "", false
	}
	return strings.ReplaceAll(strings.ToLower(rest[:i]), "-", "_"), rest[i+1:], true
}
