package shellread

import (
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"
)

// Each of these ended the process with a stack overflow, or took hundreds of MB.
func TestParseRefusesWhatIsTooDeep(t *testing.T) {
	t.Parallel()
	for _, opener := range []string{"(", "((", "$(", "{ ", "${a:-", "$((", "a=("} {
		text := "echo start\nexit 0\n" + strings.Repeat(opener, (MaxSize-100)/len(opener))
		if _, err := Parse(text, syntax.LangBash); err == nil {
			t.Errorf("%q over and over is taken for a script", opener)
		}
	}
	if _, err := Parse(strings.Repeat("true\n", MaxSize/5+1), syntax.LangBash); err == nil {
		t.Error("a text of more than MaxSize is parsed")
	}
	if f, err := Parse("if (cd a && $(which b) ${c:-{}}); then case x in y) z;; esac; fi", syntax.LangBash); err != nil || len(f.Stmts) != 1 {
		t.Errorf("%v", err)
	}
}
