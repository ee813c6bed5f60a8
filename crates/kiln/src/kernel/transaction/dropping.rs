//! The objects that a transaction uses must be there, together with all that it reads.

use super::{Buffers, Transaction};
use crate::error::{Error, Result};
use crate::kernel::catalog;
use crate::kernel::life::Standing;

impl Transaction<'_> {
    /// The transaction uses an object: has read of it just before, or writes to it.
    #[inline]
    pub(super) fn note_use(&self, buffers: &mut Buffers, object: u32) -> Result<()> {
        match self.engine.object(object).life.lives() {
            true => {
                buffers.reads.note_object(object);
                Ok(())
            }
            false => self.note_dropped(buffers, object),
        }
    }

    /// As [`Self::note_use`], of who writes. Under snapshot isolation the commit looks whether it was dropped since.
    #[inline]
    pub(super) fn note_write(&self, buffers: &mut Buffers, object: u32) -> Result<()> {
        let Some(snapshot) = self.snapshot_version() else { return self.note_use(buffers, object) };
        self.check_seen(object, snapshot)?;
        buffers.reads.note_object(object);
        Ok(())
    }

    /// The transaction depends on an object being there; false if it was dropped.
    pub(super) fn note_watched(&self, buffers: &mut Buffers, object: u32) -> Result<bool> {
        match self.engine.object(object).life.standing() {
            Standing::Lives => buffers.reads.note_object(object),
            Standing::IsBeingDropped => return Err(self.fail(Error::conflict())),
            Standing::Dropped(_) => return Ok(false),
        }
        Ok(true)
    }

    /// That the object was dropped is what the transaction reads here, if it is certain: together with all that it has read before.
    #[cold]
    fn note_dropped(&self, buffers: &mut Buffers, object: u32) -> Result<()> {
        let life = &self.engine.object(object).life;
        let Standing::Dropped(version) = life.standing() else { return Err(self.fail(Error::conflict())) };
        buffers.read_version = buffers.read_version.max(version);
        // The one read before may have been before the drop.
        match version < buffers.begin || self.engine.reads_hold(&buffers.reads, &[]) {
            true => Err(life.is_dropped()),
            false => Err(self.fail(Error::conflict())),
        }
    }

    /// Fails if an object was dropped as of the snapshot.
    #[inline]
    pub(super) fn check_seen(&self, object: u32, snapshot: u64) -> Result<()> {
        catalog::check_seen(self.engine, object, &self.engine.object(object).life, snapshot)
    }

    /// The transaction begins to read, or write, of an object whose key need not be known, and whose rows it may find without a read of theirs.
    pub(crate) fn use_object(&self, object: u32) -> Result<()> {
        // The age is looked at here, also of who sees a snapshot: of a range over settled rows nothing else does.
        let mut buffers = self.open_buffers()?;
        match self.snapshot_version() {
            Some(snapshot) => self.check_seen(object, snapshot),
            None => self.note_use(&mut buffers, object),
        }
    }

    /// Says that what it writes to the catalog drops this object.
    ///
    /// # Errors
    /// `NotFound` if it was dropped as of all that the transaction has read.
    pub(crate) fn drops(&self, object: u32) -> Result<()> {
        let mut buffers = self.open_buffers()?;
        if matches!(self.engine.object(object).life.standing(), Standing::Dropped(_)) {
            return self.note_dropped(&mut buffers, object);
        }
        buffers.writes.set_drops(object);
        Ok(())
    }
}
