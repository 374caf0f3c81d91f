package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/elevisor/elevisor/blk"
)

func TestMonotonic(t *testing.T) {
	c := Start()
	a := c.Now()
	time.Sleep(2 * time.Millisecond)
	b := c.Now()
	assert.GreaterOrEqual(t, a, blk.Instant(0))
	assert.GreaterOrEqual(t, b-a, blk.Instant(2*time.Millisecond), "sleeping takes at least its time")
}

func TestUntil(t *testing.T) {
	c := Start()
	assert.Equal(t, time.Duration(0), c.Until(-1))
	assert.Equal(t, time.Duration(blk.Never), c.Until(blk.Never))
	left := c.Until(c.Now() + blk.Instant(time.Hour))
	assert.LessOrEqual(t, left, time.Hour)
	assert.Positive(t, left)
}
