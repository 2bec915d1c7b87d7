package main

import (
	"testing"

	"sparkrun/internal/lazyre"
)

// TestEveryExpressionCompiles: one that does not would be found when it is first needed,
// in the night.
func TestEveryExpressionCompiles(t *testing.T) {
	t.Parallel()
	if n := lazyre.Check(); n < 100 {
		t.Errorf("only %d expressions are known here", n)
	}
}
