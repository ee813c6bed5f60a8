//! The device's floor as an engine: each commit is one direct write of 4 KiB and one sync, and keeps nothing else.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};

use super::catalog::{Description, Mode, Shape};
use super::{Access, Engine, Worker};
use crate::floor::Floor;
use crate::generate::Entry;

pub(super) const DESCRIPTION: Description = Description {
    what: "one direct write of 4 KiB and one fdatasync for each commit: the floor of durability",
    modes: &[Mode::Floor],
    shapes: &[Shape::Table, Shape::Map],
    transactions: false,
    keeps_data: false,
    durable_puts: true,
    past_page_cache: false,
    reopens: false,
    snapshot_scans: false,
    settings: |_| "a file written with zeros beforehand, O_DIRECT, one commit at a time",
    version: || Ok(String::new()),
};

/// The pre-written file, behind a lock.
pub(crate) struct DeviceFloor(Mutex<Floor>);

impl DeviceFloor {
    /// Makes the file in a directory.
    pub(crate) fn create(directory: &Path) -> Result<DeviceFloor> {
        Ok(DeviceFloor(Mutex::new(Floor::create(&directory.join("floor"))?)))
    }
}

impl Engine for DeviceFloor {
    type Worker<'a> = &'a DeviceFloor;

    fn worker(&self) -> Result<&DeviceFloor> {
        Ok(self)
    }

    fn key_count(&self) -> Result<u64> {
        Ok(0)
    }

    fn persist(&self) -> Result<()> {
        Ok(())
    }
}

impl Worker for &DeviceFloor {
    fn get(&mut self, _key: &[u8], _value: &mut Vec<u8>) -> Result<bool> {
        bail!("the device's floor keeps no keys")
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_durably(key, value)
    }

    fn put_durably(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write()
    }

    fn put_all(&mut self, _entries: &[Entry]) -> Result<()> {
        Ok(())
    }

    fn scan(
        &mut self,
        _from: &[u8],
        _count: usize,
        _row: &mut impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        bail!("the device's floor keeps no keys")
    }

    fn transact(&mut self, _body: &mut dyn FnMut(&mut dyn Access) -> Result<()>) -> Result<()> {
        bail!("the device's floor has no transactions")
    }
}
