//! What `wit-bindgen` makes of the contract: one world per kind of plugin, one set of shared types.

/// The records that every kind of plugin speaks of.
pub mod types {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        inline: "
            package molt:sdk;
            world types { import molt:plugin/types@0.2.0; }
        ",
        generate_all,
        generate_unused_types: true,
        additional_derives: [PartialEq, Clone],
    });
    pub use molt::plugin::types::*;
}

pub mod environment {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        world: "environment-plugin",
        with: { "molt:plugin/types@0.2.0": crate::bindings::types::molt::plugin::types },
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::environment",
    });
}

pub mod reward {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        world: "reward-plugin",
        with: { "molt:plugin/types@0.2.0": crate::bindings::types::molt::plugin::types },
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::reward",
    });
}

pub mod group_reward {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        world: "group-reward-plugin",
        with: { "molt:plugin/types@0.2.0": crate::bindings::types::molt::plugin::types },
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::group_reward",
    });
}

pub mod estimator {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        world: "estimator-plugin",
        with: { "molt:plugin/types@0.2.0": crate::bindings::types::molt::plugin::types },
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::estimator",
    });
}

pub mod loss {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        world: "loss-plugin",
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::loss",
    });
}

pub mod interpreter {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        world: "interpreter-plugin",
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::interpreter",
    });
}

/// The model, to be asked: imported by a component only if it asks.
pub mod model {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        inline: "
            package molt:sdk;
            world model { import molt:plugin/model@0.2.0; }
        ",
        with: { "molt:plugin/types@0.2.0": crate::bindings::types::molt::plugin::types },
        generate_all,
        additional_derives: [PartialEq, Clone],
    });
    pub use molt::plugin::model::*;
}

/// The interpreter, to run code: imported by a component only if it opens a session.
pub mod code {
    wit_bindgen::generate!({
        path: "../../wit/0.2.0",
        inline: "
            package molt:sdk;
            world code { import molt:plugin/code@0.2.0; }
        ",
        generate_all,
        additional_derives: [PartialEq, Clone],
    });
    pub use molt::plugin::code::*;
}
