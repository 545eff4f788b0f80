//! The BPF programs of exist: one file for each family of hooks.
#![no_std]
#![no_main]
