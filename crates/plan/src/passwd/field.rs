//! The positions of the fields of an entry, from 0.

pub(crate) const PASSWORD_FIELD: usize = 1;
/// The day of the last change of the password, in /etc/shadow.
pub(crate) const CHANGE_DATE_FIELD: usize = 2;
/// Those who may change the members, in /etc/gshadow.
pub(crate) const ADMINISTRATORS_FIELD: usize = 2;
pub(crate) const ID_FIELD: usize = 2;
/// The primary group of a user.
pub(crate) const GROUP_FIELD: usize = 3;
/// The members of a group.
pub(crate) const MEMBERS_FIELD: usize = 3;
pub(crate) const GECOS_FIELD: usize = 4;
pub(crate) const HOME_FIELD: usize = 5;
pub(crate) const SHELL_FIELD: usize = 6;
