//! What the watches keep of each kind of object.

use std::fmt::Debug;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Resource, ResourceExt as _, api::DynamicObject};
use serde::de::DeserializeOwned;

use crate::{
    config_object::ConfigObject,
    inbox::{Inbox, Mailbox},
    policy_object::PolicyObject,
    watched_budget::WatchedBudget,
    watched_upgrade::WatchedUpgradeConfig,
};
use machinist_cluster::{fleet_queries, node::NodeObject};
use machinist_kube_api::{NodeView, PoolView};

/// The fields of an object that are kept.
pub(crate) trait WatchedView: Send + Sync + Sized + 'static {
    /// The object in the API server.
    type Object: Resource<DynamicType: Clone + Debug + Send + Sync>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static;

    /// Whether a forbidden list is the same as one without objects; otherwise the leader does not begin without the
    /// permission.
    const FORBIDDEN_IS_ABSENT: bool = false;

    fn of(object: Self::Object) -> Self;

    /// The name under which changes of an object are collected.
    fn key(object: &Self::Object) -> String {
        object.name_any()
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self>;
}

impl WatchedView for NodeView {
    type Object = NodeObject;

    fn of(object: NodeObject) -> Self {
        slim(object.into())
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.nodes
    }
}

impl WatchedView for PoolView {
    type Object = DynamicObject;

    fn of(object: DynamicObject) -> Self {
        fleet_queries::pool_view(object)
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.pools
    }
}

impl WatchedView for ConfigObject {
    type Object = DynamicObject;

    fn of(object: DynamicObject) -> Self {
        object.into()
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.configs
    }
}

impl WatchedView for WatchedBudget {
    type Object = PodDisruptionBudget;

    fn of(object: PodDisruptionBudget) -> Self {
        object.into()
    }

    fn key(object: &PodDisruptionBudget) -> String {
        Self::key(object)
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.budgets
    }
}

impl WatchedView for PolicyObject {
    type Object = DynamicObject;

    const FORBIDDEN_IS_ABSENT: bool = true;

    fn of(object: DynamicObject) -> Self {
        object.into()
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.policies
    }
}

impl WatchedView for WatchedUpgradeConfig {
    type Object = DynamicObject;

    const FORBIDDEN_IS_ABSENT: bool = true;

    fn of(object: DynamicObject) -> Self {
        object.into()
    }

    fn key(object: &DynamicObject) -> String {
        Self::key(object)
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.upgrades
    }
}

impl WatchedView for String {
    type Object = DynamicObject;

    fn of(object: DynamicObject) -> Self {
        object.name_any()
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.grantors
    }
}

/// Drops fields of a Node that no decision depends on; there may be thousands of Nodes.
pub(crate) fn slim(mut node: NodeView) -> NodeView {
    node.status.capacity.clear();
    node.status.allocatable.clear();
    for condition in &mut node.status.conditions {
        condition.message = String::new();
    }
    node.status.conditions.shrink_to_fit();
    node
}

/// The item of a list, with its name.
#[derive(Debug)]
pub(crate) struct ListedItem<V> {
    pub(crate) view: V,
}

impl<V: WatchedView<Object = NodeObject>> From<NodeObject> for ListedItem<V> {
    fn from(object: NodeObject) -> Self {
        Self {
            view: V::of(object),
        }
    }
}

impl<V: WatchedView<Object = DynamicObject>> From<DynamicObject> for ListedItem<V> {
    fn from(object: DynamicObject) -> Self {
        Self {
            view: V::of(object),
        }
    }
}

impl<V: WatchedView<Object = PodDisruptionBudget>> From<PodDisruptionBudget> for ListedItem<V> {
    fn from(object: PodDisruptionBudget) -> Self {
        Self {
            view: V::of(object),
        }
    }
}
