package attach

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/qemu/qmp"
)

// guestName is what a disk's device file is called in a guest; nothing else goes into a
// path there.
var guestName = regexp.MustCompile(`^/dev/([a-z]+[a-z0-9]*)$`)

// setScheduler gives the guest's disk at a PCI address a scheduler of the guest's kernel,
// and returns the disk's name there and what its kernel says then. A name is not judged
// here: the kernel may have it as a module that it has not loaded yet.
func setScheduler(ctx context.Context, a *qmp.Agent, where pci, scheduler string) (name, choice string, err error) {
	if name, err = findDisk(ctx, a, where); err != nil {
		return "", "", err
	}
	file := "/sys/block/" + guestName.FindStringSubmatch(name)[1] + "/queue/scheduler"
	refused := a.WriteFile(ctx, file, scheduler)
	if choice, err = a.ReadFile(ctx, file); err != nil {
		if refused != nil {
			err = refused
		}
		return "", "", err
	}
	choice = strings.TrimSpace(choice)
	if !slices.Contains(strings.Fields(choice), "["+scheduler+"]") && choice != scheduler {
		return "", "", fmt.Errorf("the guest's kernel does not take --guest-scheduler=%s for %s; it has: %s", scheduler, name, choice)
	}
	return name, choice, nil
}

// findDisk is the name of the guest's disk at a PCI address, as soon as it has one: the
// guest makes it a moment after its driver has started the disk.
func findDisk(ctx context.Context, a *qmp.Agent, where pci) (string, error) {
	for {
		disks, err := a.Disks(ctx)
		if err != nil {
			return "", err
		}
		for _, d := range disks {
			if d.Address == nil || d.Partition || !guestName.MatchString(d.Name) {
				continue
			}
			if at := d.Address.PCI; where == (pci{at.Bus, at.Slot, at.Function}) {
				return d.Name, nil
			}
		}
		if err := pause(ctx, pollTime); err != nil {
			return "", fmt.Errorf("the guest agent shows no disk at PCI %02x:%02x.%x: %w", where.bus, where.slot, where.function, err)
		}
	}
}
