package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// each is the stick, or the sticks of the unit.
func (s *stick) each() []*stick {
	if len(s.members) > 0 {
		return s.members
	}
	return []*stick{s}
}

// units puts one stick in the place of all of a block with together, which stands for
// them. One that is not whole is left out for the grace period, as a stick that is
// plugged in again, and has a problem from then on.
func (v *inventory) units(sticks []*stick) []*stick {
	members := map[*block][]*stick{}
	var all []*stick
	for _, s := range sticks {
		if s.block.Together <= 1 {
			all = append(all, s)
		} else {
			members[s.block] = append(members[s.block], s)
		}
	}
	now := time.Now()
	for _, kind := range slices.Sorted(maps.Keys(v.blocks)) {
		b := v.blocks[kind]
		sticks := members[b]
		switch since, wasWhole := v.partial[b.kind]; {
		case b.Together <= 1:
			continue
		case len(sticks) == b.Together:
			v.partial[b.kind] = time.Time{}
		case wasWhole && since.IsZero():
			v.partial[b.kind] = now
		}
		if len(sticks) == 0 {
			continue
		}
		slices.SortFunc(sticks, func(x, y *stick) int { return cmp.Compare(x.id, y.id) })
		unit := *sticks[0]
		unit.id, unit.members, unit.problem = "unit:"+b.kind, sticks, ""
		if common(sticks, func(s *stick) string { return s.as.String() }) == "" {
			unit.problem = "its devices are not of one product: match one id"
		}
		if len(sticks) != b.Together {
			there := joined(sticks, func(s *stick) string { return s.id })
			unit.problem = fmt.Sprintf("%d of %d are plugged in: %s", len(sticks), b.Together, there)
			if v.partial[b.kind].Add(v.Grace.Duration()).After(now) {
				continue
			}
		}
		for _, s := range sticks {
			if unit.problem == "" && s.problem != "" {
				unit.problem = s.id + ": " + s.problem
			}
		}
		all = append(all, &unit)
	}
	return all
}
