/* Parts of the machine's reader. Only src/topology includes this. */
#ifndef IM_TOPOLOGY_INTERNAL_H
#define IM_TOPOLOGY_INTERNAL_H

#include "topology/machine.h"

void im_read_pci(im_root *root, im_machine *m);
void im_read_rdma(im_root *root, im_machine *m);
void im_read_net(im_root *root, im_machine *m);
void im_read_system(im_root *root, im_machine *m);
/* After im_read_rdma and im_read_net: netdev and MTU of each port. */
void im_read_port_mtu(im_root *root, im_machine *m);
/* Asks libibverbs, if this machine has it and the device opens. False: *why says why not. */
bool im_verbs_mtu(const char *device, int port, int *active, int *max, const char **why);

/* The PCI function that the folder `device` (a class entry's link) is; NULL with *why. */
const im_pci *im_pci_of_device(im_root *root, const im_machine *m, const char *device, const char **why);
bool im_is_pci_address(const char *text, size_t n);
/* 16 bytes of "fe80:0000:...": 8 groups, or what inet_pton takes. */
bool im_gid_parse(const char *text, unsigned char raw[16]);

#endif
